// quantize_tile: values in workgroup memory become int8 as in include/quantize.wgsl, each chunk of 16 by four lanes.
//
// quad(i) of QUADS reads four of a chunk that lie side by side; a lane calls it for the same quads that it has filled.
// Chunk c of the tile is written as chunk place_of(places, c), the first places.live of them. GROUP 32: pairs of chunks.
// Needs QUADS, quad, CHUNKS_EACH, WG, out_q array<u32>, out_scales array<vec2<f32>>. Every lane calls it.
#include "include/quantize4.wgsl"
struct Places { base: u32, stride: u32, live: u32 }
var<workgroup> quad_most: array<f32, QUADS>;
var<workgroup> quad_sums: array<f32, QUADS>;

fn place_of(p: Places, c: u32) -> u32 { return p.base + c / CHUNKS_EACH * p.stride + c % CHUNKS_EACH; }

fn chunk_most(i: u32) -> f32 {
  return max(max(quad_most[i], quad_most[i + 1u]), max(quad_most[i + 2u], quad_most[i + 3u]));
}

// The largest of those that share quad i's scale.
fn group_most(i: u32) -> f32 {
  if (GROUP == 16u) { return chunk_most(i / 4u * 4u); }
  return max(chunk_most(i / 8u * 8u), chunk_most(i / 8u * 8u + 4u));
}

fn quantize_tile(places: Places, lane: u32) {
  for (var i = lane; i < QUADS; i += WG) {
    let most = max(abs(quad(i).xy), abs(quad(i).zw));
    quad_most[i] = max(most.x, most.y);
  }
  workgroupBarrier();
  for (var i = lane; i < QUADS; i += WG) {
    let inverse = inverse_scale(group_most(i));
    let word = quantize4(quad(i), inverse);
    let rest = rest4(quad(i), inverse);
    quad_sums[i] = f32(bytes_sum(word));
    if (FINE) { quad_sums[i] += REST * f32(bytes_sum(rest)); }
    if (i / 4u < places.live) {
      let at = word_place(place_of(places, i / 4u), i % 4u);
      out_q[at] = word;
      if (FINE) { out_q[at + REST_WORDS] = rest; }
    }
  }
  workgroupBarrier();
  for (var c = lane; c < min(QUADS / 4u, places.live); c += WG) {
    let scale = group_most(4u * c) / 127.0;
    let sum = quad_sums[4u * c] + quad_sums[4u * c + 1u] + quad_sums[4u * c + 2u] + quad_sums[4u * c + 3u];
    out_scales[place_of(places, c)] = vec2<f32>(scale, scale * sum);
  }
}
