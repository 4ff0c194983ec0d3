// quantize_tile: values in workgroup memory become int8 as in include/quantize.wgsl, each run of 32 by eight lanes.
//
// quads [QUADS] holds them, four of a run side by side; a lane calls it for the same quads that it has filled.
// Run r of the tile is written as run place_of(places, r), the first places.live of them.
// Needs QUADS, RUNS_EACH, WG, out_q array<u32>, out_scales array<vec4<f32>>. Every lane calls it.
#include "include/quantize4.wgsl"
struct Places { base: u32, stride: u32, live: u32 }
var<workgroup> quads: array<vec4<f32>, QUADS>;
var<workgroup> quad_most: array<f32, QUADS>;
var<workgroup> quad_sums: array<i32, QUADS>;

fn place_of(p: Places, r: u32) -> u32 { return p.base + r / RUNS_EACH * p.stride + r % RUNS_EACH; }

fn half_most(i: u32) -> f32 {
  return max(max(quad_most[i], quad_most[i + 1u]), max(quad_most[i + 2u], quad_most[i + 3u]));
}

// The largest of quad i's half, or of its whole run.
fn group_most(i: u32) -> f32 {
  if (GROUP == 16u) { return half_most(i / 4u * 4u); }
  return max(half_most(i / 8u * 8u), half_most(i / 8u * 8u + 4u));
}

fn half_sum(i: u32) -> f32 { return f32(quad_sums[i] + quad_sums[i + 1u] + quad_sums[i + 2u] + quad_sums[i + 3u]); }

fn quantize_tile(places: Places, lane: u32) {
  for (var i = lane; i < QUADS; i += WG) {
    let most = max(abs(quads[i].xy), abs(quads[i].zw));
    quad_most[i] = max(most.x, most.y);
  }
  workgroupBarrier();
  for (var i = lane; i < QUADS; i += WG) {
    let word = quantize4(quads[i], inverse_scale(group_most(i)));
    quad_sums[i] = dot4I8Packed(word, 0x01010101u);
    if (i / 8u < places.live) { out_q[8u * place_of(places, i / 8u) + i % 8u] = word; }
  }
  workgroupBarrier();
  for (var r = lane; r < min(QUADS / 8u, places.live); r += WG) {
    let lo = group_most(8u * r) / 127.0;
    let hi = group_most(8u * r + 4u) / 127.0;
    out_scales[place_of(places, r)] = vec4<f32>(lo, lo * half_sum(8u * r), hi, hi * half_sum(8u * r + 4u));
  }
}
