// matmul: y[t, column + n] (+)= weight[n, :] . x[t, :] (+ bias[first_row + n]), many tokens
//
// Tensors are those of matvec. A workgroup makes TILE_TOKENS x TILE_ROWS outputs. It keeps RUNS runs of columns at a
// time in workgroup memory (a run: two words, 32 columns of a quant type or 8 of a float type); SLICES sets of lanes
// share the runs and add up at the end, so that few rows still fill a device. A lane makes 4 * GROUPS tokens x 4 rows.
// grid    (row tiles, token tiles, fold of the row tiles); tiles beyond count exit at once; any number of rows
// TILE_TOKENS, TILE_ROWS, GROUPS (1, 2), RUNS, SLICES, AHEAD, WG, ACCUMULATE  const, as runtime/matmul.py checks them
// tried   planes of words without padding, 8 x 8 outputs a lane, two buffers: slower. Numbers: docs/performance.md
struct Params { units: u32, num_rows: u32, first_row: u32, column: u32, y_width: u32, tokens: u32 }
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;

const LANES_X = TILE_ROWS / 4u;
const LANES_Y = TILE_TOKENS / (4u * GROUPS);
const LANES = LANES_X * LANES_Y;
const X_ITEMS = TILE_TOKENS * 2u * RUNS;
const W_ITEMS = TILE_ROWS * RUNS;
const READ_AHEAD = AHEAD == 2u || (AHEAD == 1u && SMALL_ITEMS);  // reading ahead costs registers
// A cell holds the two words of a run for four tokens or rows of a lane, and a padding word. An index within it is a
// constant, which needs no bounds check; two padding cells a run keep a row's words in different banks.
const X_STRIDE = TILE_TOKENS / 4u + 2u;
const W_STRIDE = TILE_ROWS / 4u + 2u;
alias Cell = array<Word, 9>;
var<workgroup> tile_x: array<Cell, RUNS * X_STRIDE>;
var<workgroup> tile_w: array<Cell, RUNS * W_STRIDE>;
var<workgroup> slice_sums: array<vec4<f32>, select(1u, WG, SLICES > 1u)>;
#include "include/${operand}.wgsl"
#include "include/output.wgsl"

// What a lane reads for the tile. Written out, like Sums, since an array indexed by a loop ends up in slow memory.
struct Items { x0: XItem, x1: XItem, x2: XItem, x3: XItem, w0: WItem, w1: WItem }

fn fetch_x(first_token: u32, live: u32, u: u32, i: u32) -> XItem {
  let token = first_token + i / (2u * RUNS);
  return fetch_x_word(token, token < live && (X_ITEMS % WG == 0u || i < X_ITEMS), u, i % (2u * RUNS));
}

fn fetch_w(first_row: u32, first_unit: u32, i: u32) -> WItem {
  let row = first_row + i / RUNS;
  let u = first_unit + i % RUNS;
  var item: WItem;
  if (row < params.num_rows && u < params.units && (W_ITEMS % WG == 0u || i < W_ITEMS)) {
    item = fetch_weights(row * params.units + u);
  }
  return item;
}

fn fetch(first_token: u32, live: u32, first_row: u32, u: u32, i: u32) -> Items {
  var items: Items;
  items.x0 = fetch_x(first_token, live, u, i);
  if (X_ITEMS > WG) { items.x1 = fetch_x(first_token, live, u, i + WG); }
  if (X_ITEMS > 2u * WG) { items.x2 = fetch_x(first_token, live, u, i + 2u * WG); }
  if (X_ITEMS > 3u * WG) { items.x3 = fetch_x(first_token, live, u, i + 3u * WG); }
  items.w0 = fetch_w(first_row, u, i);
  if (W_ITEMS > WG) { items.w1 = fetch_w(first_row, u, i + WG); }
  return items;
}

fn put_x(item: XItem, i: u32) {
  if (X_ITEMS % WG != 0u && i >= X_ITEMS) { return; }
  let token = i / (2u * RUNS);
  let word = i % (2u * RUNS);
  let n = token / LANES_Y;
  let cell = (word >> 1u) * X_STRIDE + (n >> 2u) * LANES_Y + token % LANES_Y;
  put_x_word(item, cell, n & 3u, word & 1u);
}

fn put_w(item: WItem, first_row: u32, first_unit: u32, i: u32) {
  if (W_ITEMS % WG != 0u && i >= W_ITEMS) { return; }
  let row = i / RUNS;
  let u = i % RUNS;
  put_weights(item, (first_row + row) * params.units + first_unit + u, u, row % LANES_X, row / LANES_X);
}

fn put(items: Items, first_row: u32, u: u32, i: u32) {
  put_x(items.x0, i);
  if (X_ITEMS > WG) { put_x(items.x1, i + WG); }
  if (X_ITEMS > 2u * WG) { put_x(items.x2, i + 2u * WG); }
  if (X_ITEMS > 3u * WG) { put_x(items.x3, i + 3u * WG); }
  put_w(items.w0, first_row, u, i);
  if (W_ITEMS > WG) { put_w(items.w1, first_row, u, i + WG); }
}

// A lane's outputs: a column a token, four rows in it.
struct Sums { a: mat4x4<f32>, b: mat4x4<f32> }

fn add_run(sums: Sums, run: u32, x: u32, t: u32) -> Sums {
  let w = read_weights(run * W_STRIDE + x);
  let cell = run * X_STRIDE + t;
  let a = add_cell(sums.a, w, cell);
  if (GROUPS == 1u) { return Sums(a, sums.b); }
  return Sums(a, add_cell(sums.b, w, cell + LANES_Y));
}

fn store4(sums: vec4<f32>, row: u32, token: u32, live: u32) {
  if (token >= live) { return; }
  if (row < params.num_rows) { store(row, token, sums.x); }
  if (row + LANES_X < params.num_rows) { store(row + LANES_X, token, sums.y); }
  if (row + 2u * LANES_X < params.num_rows) { store(row + 2u * LANES_X, token, sums.z); }
  if (row + 3u * LANES_X < params.num_rows) { store(row + 3u * LANES_X, token, sums.w); }
}

// One token's four outputs. The slices take turns at adding up, `turn` says which.
fn finish_token(mine: vec4<f32>, turn: u32, row: u32, token: u32, live: u32, thread: u32) {
  if (SLICES == 1u) {
    store4(mine, row, token, live);
    return;
  }
  slice_sums[thread] = mine;
  workgroupBarrier();
  if (thread / LANES == turn % SLICES) {
    var total = vec4<f32>();
    for (var s = 0u; s < SLICES; s++) { total += slice_sums[s * LANES + thread % LANES]; }
    store4(total, row, token, live);
  }
  workgroupBarrier();
}

fn finish(sums: mat4x4<f32>, turn: u32, row: u32, token: u32, live: u32, thread: u32) {
  finish_token(sums[0], turn, row, token, live, thread);
  finish_token(sums[1], turn + 1u, row, token + LANES_Y, live, thread);
  finish_token(sums[2], turn + 2u, row, token + 2u * LANES_Y, live, thread);
  finish_token(sums[3], turn + 3u, row, token + 3u * LANES_Y, live, thread);
}

@compute @workgroup_size(WG)
fn matmul(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let first_token = group.y * TILE_TOKENS;
  let live = min(count[0], params.tokens);
  let first_row = (group.z * groups.x + group.x) * TILE_ROWS;
  if (first_token >= live || first_row >= params.num_rows) { return; }
  let x = thread % LANES_X;
  let t = thread % LANES / LANES_X;
  let first_run = thread / LANES * (RUNS / SLICES);

  var sums: Sums;
  var items: Items;
  if (READ_AHEAD) { items = fetch(first_token, live, first_row, 0u, thread); }
  for (var u = 0u; u < params.units; u += RUNS) {
    // Read before the barrier: on its way while other lanes still multiply.
    if (!READ_AHEAD) { items = fetch(first_token, live, first_row, u, thread); }
    workgroupBarrier();
    put(items, first_row, u, thread);
    workgroupBarrier();
    if (READ_AHEAD) { items = fetch(first_token, live, first_row, u + RUNS, thread); }
    if (RUNS == SLICES) {
      sums = add_run(sums, first_run, x, t);
    } else {
      for (var r = 0u; r < RUNS / SLICES; r += 2u) {
        sums = add_run(add_run(sums, first_run + r, x, t), first_run + r + 1u, x, t);
      }
    }
  }
  finish(sums.a, 0u, first_row + x, first_token + t, live, thread);
  if (GROUPS > 1u) { finish(sums.b, 4u, first_row + x, first_token + t + 4u * LANES_Y, live, thread); }
}
