//! The dmr command: replay allocation traces, show devices.
fn main() {}
