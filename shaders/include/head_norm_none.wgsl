// normalize_head for models without norms of q and k: nothing to do, and no bindings.
fn normalize_head(is_query: bool, lane: u32) {}
