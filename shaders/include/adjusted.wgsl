// A logit as it is sampled from: behind penalties, bias and mask.
fn adjusted(logit: f32, s: Settings, row: u32, sequence: u32, token: u32) -> f32 {
  let value = biased(penalized(logit, s, sequence, token), s, sequence, token);
  return select(NEG_LARGE, value, allowed(row, token));
}
