// store_run: 32 activations become int8 with one scale, as reference quantize_q8 does, written as run `run`.
//
// Needs out_q array<vec4<u32>> (two a run) and out_scales array<vec4<f32>> (one a run: twice scale, scale * sum of 16).
#include "include/quantize4.wgsl"
struct Run { v: array<vec4<f32>, 8> }

fn store_run(run: u32, r: Run) {
  var most = max(max(abs(r.v[0]), abs(r.v[1])), max(abs(r.v[2]), abs(r.v[3])));
  most = max(most, max(max(abs(r.v[4]), abs(r.v[5])), max(abs(r.v[6]), abs(r.v[7]))));
  let amax = max(max(most.x, most.y), max(most.z, most.w));
  let inverse = inverse_scale(amax);
  let lo = vec4<u32>(
    quantize4(r.v[0], inverse), quantize4(r.v[1], inverse), quantize4(r.v[2], inverse), quantize4(r.v[3], inverse));
  let hi = vec4<u32>(
    quantize4(r.v[4], inverse), quantize4(r.v[5], inverse), quantize4(r.v[6], inverse), quantize4(r.v[7], inverse));
  out_q[2u * run] = lo;
  out_q[2u * run + 1u] = hi;
  let scale = amax / 127.0;
  let ones = vec4<u32>(0x01010101u);
  out_scales[run] = vec4<f32>(scale, scale * f32(dot16(lo, ones)), scale, scale * f32(dot16(hi, ones)));
}
