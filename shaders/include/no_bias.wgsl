// bias_of(row): what is added to the product with weight row `row`: nothing.
fn bias_of(row: u32) -> f32 { return 0.0; }
