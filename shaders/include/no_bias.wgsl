// bias_of(row): nothing is added.
fn bias_of(row: u32) -> f32 { return 0.0; }
