// x_row(t): the row of x that token t of matvec's result is made of: token_rows [tokens] i32 names it.
@group(0) @binding(10) var<storage, read> token_rows: array<i32>;
fn x_row(t: u32) -> u32 { return u32(max(token_rows[t], 0)); }
