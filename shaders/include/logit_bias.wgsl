// What is added to logits: [max_sequences, vocab_size], of use where a sequence's settings say so.
@group(0) @binding(6) var<storage, read> logit_bias: array<f32>;

fn biased(logit: f32, s: Settings, sequence: u32, token: u32) -> f32 {
  if (s.biased == 0u) { return logit; }
  return logit + logit_bias[sequence * params.vocab_size + token];
}
