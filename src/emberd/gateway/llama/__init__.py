"""Routes that llama.cpp's server has, some of which vLLM has too under the same names."""
