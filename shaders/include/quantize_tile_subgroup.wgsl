// quantize_tile as in include/quantize_tile.wgsl, for devices with a fixed subgroup size, a multiple of 8: the lanes
// of a chunk exchange what they need without workgroup memory or barriers.
#include "include/quantize4.wgsl"
struct Places { base: u32, stride: u32, live: u32 }

fn place_of(p: Places, c: u32) -> u32 { return p.base + c / CHUNKS_EACH * p.stride + c % CHUNKS_EACH; }

fn quantize_tile(places: Places, lane: u32) {
  for (var first = 0u; first < QUADS; first += WG) {
    let i = min(first + lane, QUADS - 1u);
    let v = quad(i);
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
    if (first + lane < QUADS && i / 4u < places.live) {
      let place = place_of(places, i / 4u);
      let at = word_place(place, i % 4u);
      out_q[at] = word;
      if (FINE) { out_q[at + REST_WORDS] = rest; }
      let scale = most / 127.0;
      if (i % 4u == 0u) { out_scales[place] = vec2<f32>(scale, scale * sum); }
    }
  }
}
