//! The gates of this workspace.
fn main() {}
