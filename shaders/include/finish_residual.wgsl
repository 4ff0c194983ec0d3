// matvec's products added to the residual, which goes on as int8 for the next RMS norm's reader.
//
// hidden  [tokens, num_rows] f32, in and out     norm_weight [num_rows] f32: the next norm's
// out_q, out_scales  hidden * norm_weight as in quantize_q8: 1 / rms is left to the reader (include/norm_ahead.wgsl)
// out_squares [tokens, num_rows / 16] f32: sums of squares of hidden
// A tile's rows are whole groups of GROUP.
@group(0) @binding(6) var<storage, read_write> hidden: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> norm_weight: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> out_q: array<u32>;
@group(0) @binding(9) var<storage, read_write> out_scales: array<vec2<f32>>;
@group(0) @binding(10) var<storage, read_write> out_squares: array<f32>;
const TILE_QUADS = TILE_ROWS / 4u;
const QUADS = M * TILE_QUADS;
const CHUNKS_EACH = TILE_ROWS / 16u;
#include "include/quads.wgsl"
#include "include/${quantize}.wgsl"
var<workgroup> quad_squares: array<f32, QUADS>;

fn weight_row(tile: u32, local: u32) -> u32 { return tile * TILE_ROWS + local; }

fn start_row(row: u32, token: u32) -> f32 {
  return hidden[(min(token, params.tokens - 1u) * params.num_rows + row) / 4u][row % 4u];
}

fn start(tile: u32, local: u32, token: u32) -> vec4<f32> {
  let row = weight_row(tile, local);
  var v = vec4<f32>(start_row(row, token), 0.0, 0.0, 0.0);
  if (ROWS > 1u) { v.y = start_row(row + 1u, token); }
  if (ROWS > 2u) {
    v.z = start_row(row + 2u, token);
    v.w = start_row(row + 3u, token);
  }
  return v;
}

fn keep(total: vec4<f32>, tile: u32, local: u32, first: u32, index: u32, live: u32) {
  let i = index * TILE_ROWS + local;
  quads[i / 4u][i % 4u] = total.x;
  if (ROWS > 1u) { quads[i / 4u][i % 4u + 1u] = total.y; }
  if (ROWS > 2u) { quads[i / 4u] = total; }
}

// What the first quad of a lane is multiplied with: read early, so that no lane waits for it at the end.
fn prefetch(tile: u32, thread: u32) -> vec4<f32> {
  return norm_weight[tile * TILE_QUADS + thread % TILE_QUADS];
}

fn finish_tile(early: vec4<f32>, tile: u32, first: u32, live: u32, thread: u32) {
  workgroupBarrier();
  let row_quads = params.num_rows / 4u;
  for (var i = thread; i < QUADS; i += WG) {
    let token = first + i / TILE_QUADS;
    let quad = tile * TILE_QUADS + i % TILE_QUADS;
    let v = quads[i];
    if (token < live) { hidden[token * row_quads + quad] = v; }
    quad_squares[i] = dot(v, v);
    if (i < WG) { quads[i] = v * early; } else { quads[i] = v * norm_weight[quad]; }
  }
  let row_chunks = params.num_rows / 16u;
  let places = Places(
    first * row_chunks + tile * CHUNKS_EACH, row_chunks, (max(live, first) - first) * CHUNKS_EACH);
  quantize_tile(places, thread);
  workgroupBarrier(); // every quad's squares are there
  for (var c = thread; c < min(QUADS / 4u, places.live); c += WG) {
    out_squares[place_of(places, c)] =
      quad_squares[4u * c] + quad_squares[4u * c + 1u] + quad_squares[4u * c + 2u] + quad_squares[4u * c + 3u];
  }
}
