// quantize_tile as in include/quantize_tile.wgsl, for devices with a fixed subgroup size, a multiple of 8: the eight
// lanes of a run exchange what they need without workgroup memory or barriers.
#include "include/quantize4.wgsl"
struct Places { base: u32, stride: u32, live: u32 }
var<workgroup> quads: array<vec4<f32>, QUADS>;

fn place_of(p: Places, r: u32) -> u32 { return p.base + r / RUNS_EACH * p.stride + r % RUNS_EACH; }

fn quantize_tile(places: Places, lane: u32) {
  for (var first = 0u; first < QUADS; first += WG) {
    let i = min(first + lane, QUADS - 1u);
    let v = quads[i];
    let pair = max(abs(v.xy), abs(v.zw));
    var most = max(pair.x, pair.y);
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    let other_most = subgroupShuffleXor(most, 4u);
    if (GROUP == 32u) { most = max(most, other_most); }
    let word = quantize4(v, inverse_scale(most));
    var half = dot4I8Packed(word, 0x01010101u);
    half += subgroupShuffleXor(half, 1u);
    half += subgroupShuffleXor(half, 2u);
    let other = subgroupShuffleXor(half, 4u);
    let live = first + lane < QUADS && i / 8u < places.live;
    if (live) {
      let place = place_of(places, i / 8u);
      out_q[8u * place + i % 8u] = word;
      let lo = most / 127.0;
      let hi = select(lo, other_most / 127.0, GROUP == 16u);
      if (i % 8u == 0u) { out_scales[place] = vec4<f32>(lo, lo * f32(half), hi, hi * f32(other)); }
    }
  }
}
