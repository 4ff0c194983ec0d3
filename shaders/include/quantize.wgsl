// store_run: 32 activations become int8 as reference quantize_q8 does, with one scale, or with GROUP 16 one a half.
//
// Needs out_q array<vec4<u32>> (two a run, FINE four) and out_scales array<vec4<f32>> (one a run: scale, scale * sum of 16, of each half).
#include "include/quantize4.wgsl"
struct Run { v: array<vec4<f32>, 8> }

fn most_of(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
  let most = max(max(abs(a), abs(b)), max(abs(c), abs(d)));
  return max(max(most.x, most.y), max(most.z, most.w));
}

fn store_run(run: u32, r: Run) {
  var most = vec2<f32>(most_of(r.v[0], r.v[1], r.v[2], r.v[3]), most_of(r.v[4], r.v[5], r.v[6], r.v[7]));
  if (GROUP == 32u) { most = vec2<f32>(max(most.x, most.y)); }
  let a = inverse_scale(most.x);
  let b = inverse_scale(most.y);
  let lo = vec4<u32>(quantize4(r.v[0], a), quantize4(r.v[1], a), quantize4(r.v[2], a), quantize4(r.v[3], a));
  let hi = vec4<u32>(quantize4(r.v[4], b), quantize4(r.v[5], b), quantize4(r.v[6], b), quantize4(r.v[7], b));
  let scale = most / 127.0;
  let ones = vec4<u32>(0x01010101u);
  var sums = vec2<f32>(f32(dot16(lo, ones)), f32(dot16(hi, ones)));
  if (FINE) {
    let lo_rest = vec4<u32>(rest4(r.v[0], a), rest4(r.v[1], a), rest4(r.v[2], a), rest4(r.v[3], a));
    let hi_rest = vec4<u32>(rest4(r.v[4], b), rest4(r.v[5], b), rest4(r.v[6], b), rest4(r.v[7], b));
    out_q[4u * run] = lo;
    out_q[4u * run + 1u] = lo_rest;
    out_q[4u * run + 2u] = hi;
    out_q[4u * run + 3u] = hi_rest;
    sums += REST * vec2<f32>(f32(dot16(lo_rest, ones)), f32(dot16(hi_rest, ones)));
  } else {
    out_q[2u * run] = lo;
    out_q[2u * run + 1u] = hi;
  }
  out_scales[run] = vec4<f32>(scale.x, scale.x * sums.x, scale.y, scale.y * sums.y);
}
