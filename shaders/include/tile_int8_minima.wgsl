// The tile of matmul for a quant type whose chunks of 16 have a minimum each and share a scale (Q2_K).
//
// As tile_int8 with SPLIT_HALVES, but sums of activations and minima are kept for both words of a run.
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec4<f32>>;
alias Word = vec4<u32>;
const SMALL_ITEMS = true;
const W_UNITS = 2u;
var<workgroup> x_scale: array<vec4<f32>, X_PLANE>;
var<workgroup> x_sum: array<array<vec4<f32>, X_PLANE>, 2>;  // times scale
var<workgroup> w_scale: array<vec4<f32>, W_PLANE>;
var<workgroup> w_minimum: array<array<vec4<f32>, W_PLANE>, 2>;

struct XScales { a: vec4<f32>, b: vec4<f32> }
struct WItem { a: Packed, b: Packed }

#include "include/tile_words.wgsl"

fn put_scales(scales: XScales, cell: u32, next: u32, n: u32) {
  x_scale[cell][n] = scales.a.x;
  x_sum[0][cell][n] = scales.a.y;
  x_sum[1][cell][n] = scales.a.w;
  x_scale[next][n] = scales.b.x;
  x_sum[0][next][n] = scales.b.y;
  x_sum[1][next][n] = scales.b.w;
}

fn fetch_weights(row: u32, u: u32) -> WItem {
  let i = row * params.units + u;
  var pair: WItem;
  if (!RAGGED || u < params.units) { pair.a = fetch_unit(i); }
  if (!RAGGED || u + 1u < params.units) { pair.b = fetch_unit(i + 1u); }
  return pair;
}

// Units u and u + 1 of a row, the first of which goes to `cell`: words of two runs each.
fn put_weights(pair: WItem, row: u32, u: u32, cell: u32, n: u32) {
  let i = row * params.units + u;
  let a = unpack_unit(pair.a, i);
  let b = unpack_unit(pair.b, i + 1u);
  let next = cell + W_STRIDE;
  tile_w[2u * n][cell] = a.lo;
  tile_w[2u * n + 1u][cell] = b.lo;
  tile_w[2u * n][next] = a.hi;
  tile_w[2u * n + 1u][next] = b.hi;
  w_scale[cell][n] = a.scale.x;
  w_scale[next][n] = a.scale.x;
  w_minimum[0][cell][n] = a.minimum.x;
  w_minimum[1][cell][n] = b.minimum.x;
  w_minimum[0][next][n] = a.minimum.y;
  w_minimum[1][next][n] = b.minimum.y;
}

// A run of a lane's four rows: first words, second words.
struct Weights {
  a0: vec4<u32>, b0: vec4<u32>, a1: vec4<u32>, b1: vec4<u32>,
  a2: vec4<u32>, b2: vec4<u32>, a3: vec4<u32>, b3: vec4<u32>,
  scale: vec4<f32>, first: vec4<f32>, second: vec4<f32>,
}

fn read_weights(cell: u32) -> Weights {
  return Weights(
    tile_w[0][cell], tile_w[1][cell], tile_w[2][cell], tile_w[3][cell],
    tile_w[4][cell], tile_w[5][cell], tile_w[6][cell], tile_w[7][cell],
    w_scale[cell], w_minimum[0][cell], w_minimum[1][cell]);
}

#include "include/tile_dots.wgsl"

fn both_words(w0: vec4<u32>, w1: vec4<u32>, a: vec4<u32>, b: vec4<u32>) -> i32 {
  return add_dot(add_dot(ZERO, a, w0), b, w1);
}

fn add_token(
  sums: vec4<f32>, w: Weights, a: vec4<u32>, b: vec4<u32>, scale: f32, first: f32, second: f32,
) -> vec4<f32> {
  let dots = vec4<i32>(
    both_words(w.a0, w.b0, a, b), both_words(w.a1, w.b1, a, b),
    both_words(w.a2, w.b2, a, b), both_words(w.a3, w.b3, a, b));
  let added = fma(scale * w.scale, floats(dots), sums);
  return fma(vec4<f32>(-second), w.second, fma(vec4<f32>(-first), w.first, added));
}

// sums + what the run of `w` adds for the four tokens of a cell.
fn add_cell(sums: mat4x4<f32>, w: Weights, cell: u32) -> mat4x4<f32> {
  let scale = x_scale[cell];
  let first = x_sum[0][cell];
  let second = x_sum[1][cell];
  return mat4x4<f32>(
    add_token(sums[0], w, tile_x[0][cell], tile_x[1][cell], scale.x, first.x, second.x),
    add_token(sums[1], w, tile_x[2][cell], tile_x[3][cell], scale.y, first.y, second.y),
    add_token(sums[2], w, tile_x[4][cell], tile_x[5][cell], scale.z, first.z, second.z),
    add_token(sums[3], w, tile_x[6][cell], tile_x[7][cell], scale.w, first.w, second.w));
}
