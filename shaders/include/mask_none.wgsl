// For steps in which every row may get any token.
fn allowed(row: u32, token: u32) -> bool { return true; }
