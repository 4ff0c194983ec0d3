// Heads of attention_decode as projected, read where they are.
fn prepare_heads(first_query: u32, num_heads: u32, key_head: u32, lane: u32) {}
fn head_base(head: u32, place: u32) -> u32 { return place; }
fn head_value(i: u32) -> f32 { return qk[i]; }
