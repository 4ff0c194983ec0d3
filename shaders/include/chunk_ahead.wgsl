// What embedding does with a chunk of 16 values beside storing it: int8 for the next RMS norm's reader.
//
// norm_weight [units * 32] f32: that norm's     out_q, out_scales  y * norm_weight as in quantize_q8, a scale a chunk
// out_squares [tokens, units * 2] f32: sums of squares of y; 1 / rms is left to the reader (include/norm_ahead.wgsl)
#include "include/quantize4.wgsl"
#include "include/dot16.wgsl"
@group(0) @binding(6) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> out_q: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> out_scales: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> out_squares: array<f32>;

fn chunk_stored(chunk: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) {
  let i = chunk % (params.units * 2u) * 4u;
  let x = a * norm_weight[i];
  let y = b * norm_weight[i + 1u];
  let z = c * norm_weight[i + 2u];
  let w = d * norm_weight[i + 3u];
  let mosts = max(max(abs(x), abs(y)), max(abs(z), abs(w)));
  let most = max(max(mosts.x, mosts.y), max(mosts.z, mosts.w));
  let inverse = inverse_scale(most);
  let q = vec4<u32>(quantize4(x, inverse), quantize4(y, inverse), quantize4(z, inverse), quantize4(w, inverse));
  let scale = most / 127.0;
  let ones = vec4<u32>(0x01010101u);
  var sum = f32(dot16(q, ones));
  if (FINE) {
    let rest = vec4<u32>(rest4(x, inverse), rest4(y, inverse), rest4(z, inverse), rest4(w, inverse));
    out_q[2u * chunk] = q;
    out_q[2u * chunk + 1u] = rest;
    sum += REST * f32(dot16(rest, ones));
  } else {
    out_q[chunk] = q;
  }
  out_scales[chunk] = vec2<f32>(scale, scale * sum);
  out_squares[chunk] = dot(a, a) + dot(b, b) + dot(c, c) + dot(d, d);
}
