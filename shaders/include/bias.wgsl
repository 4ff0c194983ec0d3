// bias_of(row): what is added to the product with weight row `row`.
@group(0) @binding(4) var<storage, read> bias: array<f32>;

fn bias_of(row: u32) -> f32 { return bias[row]; }
