// rms_norm_quantize_subgroups: rms_norm_quantize where subgroups have one size, a multiple of 8
//
// Tensors and grid are those of rms_norm_quantize. A lane takes four values at a time, so that lanes side by side read
// and write side by side and few rows keep many lanes busy; the lanes of a run exchange its largest value and its sums.
// WG      power of two, const     EACH (1 to 4)  quads of a lane, const; WG * EACH quads are a row or more
struct Params { width: u32, eps: f32 }
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out_q: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_scales: array<vec2<f32>>;
@group(0) @binding(5) var<uniform> params: Params;
#include "include/reduce_subgroup.wgsl"
#include "include/${source}.wgsl"
#include "include/quantize4.wgsl"

struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn load_x(row: u32, i: u32, quads: u32) -> vec4<f32> {
  var v: vec4<f32>;
  if (i < quads) { v = x[row + i]; }
  return v;
}

fn load_weight(i: u32, quads: u32) -> vec4<f32> {
  var v: vec4<f32>;
  if (i < quads) { v = weight[i]; }
  return v;
}

// Quad i of a row, whose first is `out`. Every lane calls it.
fn store_quad(v: vec4<f32>, out: u32, i: u32, quads: u32) {
  let pair = max(abs(v.xy), abs(v.zw));
  var most = max(pair.x, pair.y);
  most = max(most, subgroupShuffleXor(most, 1u));
  most = max(most, subgroupShuffleXor(most, 2u));
  if (GROUP == 32u) { most = max(most, subgroupShuffleXor(most, 4u)); }
  let inverse = inverse_scale(most);
  let word = quantize4(v, inverse);
  let rest = rest4(v, inverse);
  var sum = f32(bytes_sum(word));
  if (FINE) { sum += REST * f32(bytes_sum(rest)); }
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  if (i >= quads) { return; }
  let place = word_place((out + i) / 4u, i % 4u);
  out_q[place] = word;
  if (FINE) { out_q[place + REST_WORDS] = rest; }
  let scale = most / 127.0;
  if (i % 4u == 0u) { out_scales[(out + i) / 4u] = vec2<f32>(scale, scale * sum); }
}

@compute @workgroup_size(WG)
fn rms_norm_quantize_subgroups(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let quads = params.width / 4u;
  let row = source_row(group.x) * quads;
  var v: Quads;
  var w: Quads;
  v.a = load_x(row, lane, quads);
  w.a = load_weight(lane, quads);
  if (EACH > 1u) {
    v.b = load_x(row, lane + WG, quads);
    w.b = load_weight(lane + WG, quads);
  }
  if (EACH > 2u) {
    v.c = load_x(row, lane + 2u * WG, quads);
    w.c = load_weight(lane + 2u * WG, quads);
  }
  if (EACH > 3u) {
    v.d = load_x(row, lane + 3u * WG, quads);
    w.d = load_weight(lane + 3u * WG, quads);
  }
  let sum = dot(v.a, v.a) + dot(v.b, v.b) + dot(v.c, v.c) + dot(v.d, v.d);
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(params.width) + params.eps);
  let out = group.x * quads;
  store_quad(v.a * scale * w.a, out, lane, quads);
  if (EACH > 1u) { store_quad(v.b * scale * w.b, out, lane + WG, quads); }
  if (EACH > 2u) { store_quad(v.c * scale * w.c, out, lane + 2u * WG, quads); }
  if (EACH > 3u) { store_quad(v.d * scale * w.d, out, lane + 3u * WG, quads); }
}
