// Heads of attention_decode_subgroups as projected.
fn normed(x: Eight, part: u32, is_key: bool) -> Eight { return x; }
