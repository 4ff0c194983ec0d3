// matvec's products as rows of y: y[t, column + n] (+)= weight[n, :] . x[t, :] (+ bias[first_row + n])
//
// y [tokens, y_width] f32     bias [rows of the whole matrix] f32 or none     ACCUMULATE  const
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
#include "include/${bias}.wgsl"

fn weight_row(tile: u32, local: u32) -> u32 { return min(tile * TILE_ROWS + local, params.num_rows - 1u); }

fn start_row(tile: u32, local: u32, token: u32) -> f32 {
  return y[min(token, params.tokens - 1u) * params.y_width + params.column + weight_row(tile, local)];
}

// What the sums of a lane's rows begin with: read early, so that adding to y costs no wait at the end.
fn start(tile: u32, local: u32, token: u32) -> vec4<f32> {
  var v = vec4<f32>();
  if (ACCUMULATE) {
    v.x = start_row(tile, local, token);
    if (ROWS > 1u) { v.y = start_row(tile, local + 1u, token); }
    if (ROWS > 2u) {
      v.z = start_row(tile, local + 2u, token);
      v.w = start_row(tile, local + 3u, token);
    }
  }
  return v;
}

fn store(value: f32, row: u32, token: u32) {
  if (row >= params.num_rows) { return; }
  y[token * params.y_width + params.column + row] = value + bias_of(params.first_row + row);
}

fn keep(total: vec4<f32>, tile: u32, local: u32, first: u32, index: u32, live: u32) {
  let token = first + index;
  let row = tile * TILE_ROWS + local;
  if (token >= live) { return; }
  store(total.x, row, token);
  if (ROWS > 1u) { store(total.y, row + 1u, token); }
  if (ROWS > 2u) {
    store(total.z, row + 2u, token);
    store(total.w, row + 3u, token);
  }
}

fn prefetch(tile: u32, thread: u32) -> vec4<f32> { return vec4<f32>(); }

fn finish_tile(early: vec4<f32>, tile: u32, first: u32, live: u32, thread: u32) {}
