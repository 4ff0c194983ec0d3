// Which tokens a row may get: for each row the place of its words (0: any token), then the words, a bit a token.
@group(0) @binding(7) var<storage, read> masks: array<u32>;

fn allowed(row: u32, token: u32) -> bool {
  let first = masks[row];
  if (first == 0u) { return true; }
  return ((masks[first + token / 32u] >> (token % 32u)) & 1u) == 1u;
}
