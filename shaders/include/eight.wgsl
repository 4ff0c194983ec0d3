// Eight: 8 weights of a row in order, what load_eight of every float type gives.
struct Eight { lo: vec4<f32>, hi: vec4<f32> }
