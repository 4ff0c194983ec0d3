// matvec's products as a gated activation: gated(gate row n . x, up row n . x), written as int8.
//
// The weight holds all gate rows, then all up rows; a lane's rows are a gate row, its up row, and so on.
// out_q, out_scales  [tokens, num_rows / 2] as in quantize_q8; half of a tile's rows are whole groups of GROUP
@group(0) @binding(8) var<storage, read_write> out_q: array<u32>;
@group(0) @binding(9) var<storage, read_write> out_scales: array<vec2<f32>>;
const TILE_QUADS = TILE_ROWS / 8u;
const QUADS = M * TILE_QUADS;
const CHUNKS_EACH = TILE_ROWS / 32u;
#include "include/${activation}.wgsl"
#include "include/quads.wgsl"
#include "include/${quantize}.wgsl"
var<workgroup> pairs: array<vec2<f32>, M * TILE_ROWS / 2u>;

fn weight_row(tile: u32, local: u32) -> u32 {
  return (local & 1u) * (params.num_rows / 2u) + tile * (TILE_ROWS / 2u) + local / 2u;
}

fn start(tile: u32, local: u32, token: u32) -> vec4<f32> { return vec4<f32>(); }

fn keep(total: vec4<f32>, tile: u32, local: u32, first: u32, index: u32, live: u32) {
  let i = (index * TILE_ROWS + local) / 2u;
  pairs[i] = total.xy;
  if (ROWS > 2u) { pairs[i + 1u] = total.zw; }
}

fn gated_pair(pair: vec2<f32>) -> f32 { return gated(pair.x, pair.y); }

fn prefetch(tile: u32, thread: u32) -> vec4<f32> { return vec4<f32>(); }

fn finish_tile(early: vec4<f32>, tile: u32, first: u32, live: u32, thread: u32) {
  workgroupBarrier();
  for (var i = thread; i < QUADS; i += WG) {
    quads[i] = vec4<f32>(
      gated_pair(pairs[4u * i]), gated_pair(pairs[4u * i + 1u]),
      gated_pair(pairs[4u * i + 2u]), gated_pair(pairs[4u * i + 3u]));
  }
  let row_chunks = params.num_rows / 32u;
  quantize_tile(
    Places(first * row_chunks + tile * CHUNKS_EACH, row_chunks, (max(live, first) - first) * CHUNKS_EACH), thread);
}
