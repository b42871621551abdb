//! The program's options: those of torch_graphs.py.

use crate::model::Sizes;

/// A measurement to make.
pub struct Options {
    pub device: usize,
    pub batches: Vec<usize>,
    /// Tokens that each row generates: `context` at most.
    pub tokens: usize,
    pub sizes: Sizes,
}

const USAGE: &str = "usage: cuda_async_bench [--batches 1,8,32] [--tokens 128] [--layers 4] [--hidden 1024] [--head 64]
    [--vocabulary 32768] [--context 256] [--device 0]";

impl Options {
    /// Parses `--name value` pairs.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let sizes = Sizes { layers: 4, hidden: 1024, head: 64, vocabulary: 32768, context: 256 };
        let mut options = Self { device: 0, batches: vec![1, 8, 32], tokens: 128, sizes };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            let number = || value.parse().map_err(|_| format!("{name} {value}\n{USAGE}"));
            let sizes = &mut options.sizes;
            match name.as_str() {
                "--batches" => {
                    let rows = value.split(',').map(str::parse).collect::<Result<_, _>>();
                    options.batches = rows.map_err(|_| format!("{name} {value}\n{USAGE}"))?;
                }
                "--tokens" => options.tokens = number()?,
                "--layers" => sizes.layers = number()?,
                "--hidden" => sizes.hidden = number()?,
                "--head" => sizes.head = number()?,
                "--vocabulary" => sizes.vocabulary = number()?,
                "--context" => sizes.context = number()?,
                "--device" => options.device = number()?,
                _ => return Err(USAGE.to_owned()),
            }
        }
        let Sizes { hidden, head, vocabulary, context, .. } = options.sizes;
        let fits = options.tokens <= context && context <= 256 && vocabulary >= 128;
        if !fits || head == 0 || !hidden.is_multiple_of(head) || head > 1024 {
            return Err("the kernels do not have these sizes".to_owned());
        }
        if options.tokens == 0 || options.batches.is_empty() || options.batches.contains(&0) {
            return Err(USAGE.to_owned());
        }
        Ok(options)
    }
}
