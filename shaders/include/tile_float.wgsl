// The tile of matmul for float types: a word is 4 columns, an item of weights 8 columns of a row.
//
// x [tokens, units * 8] f32
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
alias Word = vec4<f32>;
alias XItem = vec4<f32>;
alias WItem = Eight;
const SMALL_ITEMS = true;

fn fetch_x_word(token: u32, inside: bool, first_unit: u32, word: u32) -> XItem {
  var item: XItem;
  if (inside && first_unit + (word >> 1u) < params.units) {
    item = x[(token * params.units + first_unit) * 2u + word];
  }
  return item;
}

fn put_x_word(item: XItem, cell: u32, n: u32, word: u32) { tile_x[cell][2u * n + word] = item; }

fn fetch_weights(i: u32) -> WItem { return load_eight(0u, i); }

fn put_weights(w: WItem, i: u32, u: u32, lane_x: u32, n: u32) {
  let cell = u * W_STRIDE + lane_x;
  tile_w[cell][2u * n] = w.lo;
  tile_w[cell][2u * n + 1u] = w.hi;
}

// A run of a lane's four rows: first words, second words.
struct Weights { first: mat4x4<f32>, second: mat4x4<f32> }

fn read_weights(cell: u32) -> Weights {
  return Weights(
    mat4x4<f32>(tile_w[cell][0], tile_w[cell][2], tile_w[cell][4], tile_w[cell][6]),
    mat4x4<f32>(tile_w[cell][1], tile_w[cell][3], tile_w[cell][5], tile_w[cell][7]));
}

// sums + what the run of `w` adds for the four tokens of a cell.
fn add_cell(sums: mat4x4<f32>, w: Weights, cell: u32) -> mat4x4<f32> {
  return sums + mat4x4<f32>(
    tile_x[cell][0] * w.first + tile_x[cell][1] * w.second,
    tile_x[cell][2] * w.first + tile_x[cell][3] * w.second,
    tile_x[cell][4] * w.first + tile_x[cell][5] * w.second,
    tile_x[cell][6] * w.first + tile_x[cell][7] * w.second);
}
