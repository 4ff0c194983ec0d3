// Four activations to int8, given what their run is multiplied with: 127 / max|x|, 0 for a run of zeros.
fn inverse_scale(most: f32) -> f32 { return select(127.0 / most, 0.0, most == 0.0); }

fn quantize4(v: vec4<f32>, inverse: f32) -> u32 { return pack4xI8(vec4<i32>(round(v * inverse))); }
