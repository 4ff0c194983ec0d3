// matmul: products of weight rows with many tokens; include/tile_rows.wgsl or tile_gate_up.wgsl says which rows, and
// what becomes of the products
//
// Tensors are those of matvec. A workgroup makes TILE_TOKENS x TILE_ROWS outputs. It keeps RUNS runs of columns at a
// time in workgroup memory (a run: two words, 32 columns of a quant type or 8 of a float type); SLICES sets of lanes
// share the runs and add up at the end, so that few rows still fill a device. A lane makes 4 * GROUPS tokens x 4 rows.
// grid    (row tiles, token tiles, fold of the row tiles); tiles beyond count exit at once; any number of rows
// TILE_TOKENS, TILE_ROWS, GROUPS (1, 2), RUNS, SLICES, AHEAD, WG  const, as runtime/matmul.py checks them
// RAGGED  const: whether the last runs may lie beyond the columns     FINE  const: of activations, include/quantize4.wgsl
// tried   8 x 8 outputs a lane, two buffers, weights in registers: slower. Numbers: docs/performance.md
struct Params { units: u32, num_rows: u32, first_row: u32, column: u32, y_width: u32, tokens: u32 }
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(8) var<uniform> params: Params;

const LANES_X = TILE_ROWS / 4u;
const LANES_Y = TILE_TOKENS / (4u * GROUPS);
const LANES = LANES_X * LANES_Y;
const X_ITEMS = TILE_TOKENS * 2u * RUNS;  // words
const S_ITEMS = TILE_TOKENS * RUNS / 2u;  // scales of two runs
const READ_AHEAD = AHEAD == 2u || (AHEAD == 1u && SMALL_ITEMS);  // reading ahead costs registers
// Eight planes: the two words of a run for each of a lane's four tokens or rows. Which plane is a constant where they
// are read, so one bounds check serves all, and lanes side by side read neighbouring words.
// Eight lanes side by side fill words of one to four runs, rows or tokens: so that these lie in different banks, the
// cells of x are turned from run to run, those of w moved from pair to pair, and a run's two words some cells apart.
const X_STRIDE = TILE_TOKENS / 4u;
const W_STRIDE = TILE_ROWS / 4u;
const X_TURN = select(2u, 1u, RUNS >= 4u);
const W_ROOM = max(16u / RUNS, 1u);  // between pairs of runs
const W_APART = select(8u / RUNS, 4u, RUNS > 8u);
const X_PLANE = RUNS * X_STRIDE + 4u;
const W_PLANE = (RUNS * W_STRIDE + (RUNS / 2u - 1u) * W_ROOM + 7u - W_APART) / 8u * 8u + W_APART;
var<workgroup> tile_x: array<array<Word, X_PLANE>, 8>;
var<workgroup> tile_w: array<array<Word, W_PLANE>, 8>;

fn x_place(run: u32, token_cell: u32) -> u32 { return run * X_STRIDE + (token_cell ^ (run * X_TURN & 3u)); }

fn w_place(run: u32, row_cell: u32) -> u32 { return run * W_STRIDE + run / 2u * W_ROOM + row_cell; }

#include "include/${operand}.wgsl"
#include "include/${finish}.wgsl"
const W_ITEMS = TILE_ROWS * RUNS / W_UNITS;  // a unit, or two that share what they are decoded from

// What a lane reads for the tile. Written out, like Sums, since an array indexed by a loop ends up in slow memory.
struct Items { x0: Word, x1: Word, x2: Word, x3: Word, scales: XScales, w: WItem }

// Where the tile lies. Rows and tokens beyond the last one repeat that one: their outputs are not stored.
struct Place { first_token: u32, last_token: u32, first_row: u32, last_row: u32 }

// FINE: the columns come twice, for the first int8 of each activation and for the second. Column units count on.
struct Columns { unit: u32, rest: u32 }

fn all_units() -> u32 { return (params.units + RUNS - 1u) / RUNS * RUNS; }

fn columns_at(u: u32) -> Columns {
  if (!FINE || u < all_units()) { return Columns(u, 0u); }
  return Columns(u - all_units(), 1u);
}

fn fetch_x(at: Place, part: Columns, i: u32) -> Word {
  var word: Word;
  if (X_ITEMS % WG == 0u || i < X_ITEMS) {
    let token = min(at.first_token + i / (2u * RUNS), at.last_token);
    word = fetch_word(token, part.unit, i % (2u * RUNS), part.rest);
  }
  return word;
}

fn fetch(at: Place, u: u32, i: u32) -> Items {
  var items: Items;
  let part = columns_at(u);
  items.x0 = fetch_x(at, part, i);
  if (X_ITEMS > WG) { items.x1 = fetch_x(at, part, i + WG); }
  if (X_ITEMS > 2u * WG) { items.x2 = fetch_x(at, part, i + 2u * WG); }
  if (X_ITEMS > 3u * WG) { items.x3 = fetch_x(at, part, i + 3u * WG); }
  let s = i + S_ITEMS - WG;  // the last lanes, since the first ones have weights
  if (i + S_ITEMS >= WG) {
    let token = min(at.first_token + s / (RUNS / 2u), at.last_token);
    items.scales = fetch_scales(token, part.unit + s % (RUNS / 2u) * 2u, part.rest);
  }
  if (i < W_ITEMS) {
    items.w = fetch_weights(weight_row(at, i / (RUNS / W_UNITS)), part.unit + i % (RUNS / W_UNITS) * W_UNITS);
  }
  return items;
}

fn x_cell(token: u32, run: u32) -> u32 {
  return x_place(run, token / (4u * LANES_Y) * LANES_Y + token % LANES_Y);
}

fn put_x(word: Word, i: u32) {
  if (X_ITEMS % WG != 0u && i >= X_ITEMS) { return; }
  let token = i / (2u * RUNS);
  let w = i % (2u * RUNS);
  tile_x[2u * (token / LANES_Y % 4u) + w % 2u][x_cell(token, w / 2u)] = word;
}

fn put(items: Items, at: Place, u: u32, i: u32) {
  put_x(items.x0, i);
  if (X_ITEMS > WG) { put_x(items.x1, i + WG); }
  if (X_ITEMS > 2u * WG) { put_x(items.x2, i + 2u * WG); }
  if (X_ITEMS > 3u * WG) { put_x(items.x3, i + 3u * WG); }
  let s = i + S_ITEMS - WG;
  if (i + S_ITEMS >= WG) {
    let token = s / (RUNS / 2u);
    let run = s % (RUNS / 2u) * 2u;
    put_scales(items.scales, x_cell(token, run), x_cell(token, run + 1u), token / LANES_Y % 4u);
  }
  if (i < W_ITEMS) {
    let row = i / (RUNS / W_UNITS);
    let run = i % (RUNS / W_UNITS) * W_UNITS;
    put_weights(items.w, weight_row(at, row), columns_at(u).unit + run, w_place(run, row % LANES_X), row / LANES_X);
  }
}

// A lane's outputs: a column a token, four rows in it.
struct Sums { a: mat4x4<f32>, b: mat4x4<f32> }

fn add_run(sums: Sums, run: u32, x: u32, t: u32) -> Sums {
  let w = read_weights(w_place(run, x));
  let cell = x_place(run, t);
  let a = add_cell(sums.a, w, cell);
  if (GROUPS == 1u) { return Sums(a, sums.b); }
  return Sums(a, add_cell(sums.b, w, cell ^ LANES_Y));
}

// A lane's sums for other slices to see, in the tile's memory when nobody reads weights there any more.
const PLANE_WORDS = RUNS * W_STRIDE;

fn show_slice(thread: u32, sums: vec4<f32>) {
  tile_w[thread / PLANE_WORDS][thread % PLANE_WORDS] = bitcast<Word>(sums);
}

// What all slices have of a lane's four outputs of one token.
fn slice_total(thread: u32) -> vec4<f32> {
  var total = vec4<f32>();
  for (var s = 0u; s < SLICES; s++) {
    let i = s * LANES + thread % LANES;
    total += bitcast<vec4<f32>>(tile_w[i / PLANE_WORDS][i % PLANE_WORDS]);
  }
  return total;
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
  let at = Place(first_token, live - 1u, first_row, params.num_rows - 1u);
  // Of four lanes side by side, two share rows and two a token: memory that returns what two read at once is read once.
  let x = thread / 2u % LANES_X;
  let t = thread % 2u + thread % LANES / (2u * LANES_X) * 2u;
  let first_run = thread / LANES * (RUNS / SLICES);
  // Where only some lanes bring weights, it is others in every other tile: that keeps a core's parts equally busy.
  let turn = select(0u, countOneBits(group.x ^ group.y) % 2u * (WG / 2u), W_ITEMS < WG);
  let item = (thread + turn) % WG;

  var sums: Sums;
  var items: Items;
  if (READ_AHEAD) { items = fetch(at, 0u, item); }
  let end = select(params.units, 2u * all_units(), FINE);
  for (var u = 0u; u < end; u += RUNS) {
    // Read before the barrier: on its way while other lanes still multiply.
    if (!READ_AHEAD) { items = fetch(at, u, item); }
    workgroupBarrier();
    put(items, at, u, item);
    workgroupBarrier();
    if (READ_AHEAD) { items = fetch(at, u + RUNS, item); }
    if (RUNS == SLICES) {
      sums = add_run(sums, first_run, x, t);
    } else {
      for (var r = 0u; r < RUNS / SLICES; r += 2u) {
        sums = add_run(add_run(sums, first_run + r, x, t), first_run + r + 1u, x, t);
      }
    }
  }
  finish_tile(sums, at, x, t, thread);
}
