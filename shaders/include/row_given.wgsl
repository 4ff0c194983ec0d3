// source_row(r): the row of x that row r of the result is made of: rows [rows of the result] i32 names it.
@group(0) @binding(2) var<storage, read> rows: array<i32>;

fn source_row(r: u32) -> u32 { return u32(max(rows[r], 0)); }
