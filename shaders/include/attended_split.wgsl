// A split's share of the attended values, for attention_decode_merge.
//
// split_sums [rows, num_heads, splits, HEAD_DIM + KV_DIMS] f32: sum of weighted values, then max and sum of weights
@group(0) @binding(11) var<storage, read_write> split_sums: array<Kv>;

fn attended(sum: Kv, column: u32, w: u32, head_row: u32, split: u32, most: f32, total: f32) {
  let entry = ((head_row + column) * params.splits + split) * (WORDS + 1u);
  split_sums[entry + w] = sum;
  if (w == 0u) {
    var state = Kv();
    state.x = most;
    state.y = total;
    split_sums[entry + WORDS] = state;
  }
}

fn finish_attended(head_row: u32, num_heads: u32, lane: u32) {}
