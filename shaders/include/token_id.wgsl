// token_id(t): the id of token t; a negative one stands for the last token sampled for its sequence.
@group(0) @binding(2) var<storage, read> token_ids: array<i32>;
@group(0) @binding(3) var<storage, read> last_tokens: array<u32>;
@group(0) @binding(4) var<storage, read> sequence_index: array<i32>;

fn token_id(t: u32) -> u32 {
  let id = token_ids[t];
  if (id >= 0) { return u32(id); }
  return last_tokens[max(sequence_index[t], 0)];
}
