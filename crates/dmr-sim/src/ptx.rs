//! The declarations of PTX text: kernels with the layout of their parameters, and variables.
//!
//! The bodies of kernels are parsed with the rest, and not kept: tests register closures for them.

use dmr_ptx::syntax::{self, Function, InitialValue, Linkage, Space};

/// The declarations of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declarations {
    pub(crate) entries: Vec<KernelEntry>,
    /// The variables in global and constant memory whose initial values are numbers.
    pub(crate) variables: Vec<Variable>,
}

/// One `.entry`: its name and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelEntry {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
}

impl KernelEntry {
    /// Returns the bytes of all parameters, packed as the driver packs them.
    pub(crate) fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |last| last.offset + last.bytes)
    }
}

/// A parameter: its place among all parameters, and its size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// A variable at module scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The initial bytes; those that are missing are 0.
    pub(crate) initial: Vec<u8>,
}

/// The maximum size of a kernel's parameters (PTX ISA 8.1, sm_70 and later).
const MAX_PARAMETER_BYTES: usize = 32_764;
/// The most initial bytes of a variable, counted from its beginning.
const MAX_INITIAL_BYTES: usize = 1 << 28;

/// Returns the declarations of a module; `None` if the text is not PTX.
pub(crate) fn parse(text: &str) -> Option<Declarations> {
    let module = syntax::parse(text.as_bytes()).ok()?;
    let kernels = module.functions.iter().filter(|function| function.is_entry);
    Some(Declarations {
        entries: kernels.map(entry).collect::<Option<_>>()?,
        variables: module.variables.iter().filter_map(variable).collect(),
    })
}

/// Returns the layout of a kernel's parameters; `None` if they are too large.
fn entry(kernel: &Function) -> Option<KernelEntry> {
    let mut params = Vec::new();
    let mut end = 0usize;
    for param in &kernel.params {
        let bytes = usize::try_from(param.bytes()?).ok()?;
        let offset = end.checked_next_multiple_of(usize::try_from(param.align).ok()?)?;
        params.push(Param { offset, bytes });
        end = offset.checked_add(bytes)?;
    }
    (end <= MAX_PARAMETER_BYTES).then(|| KernelEntry { name: kernel.name.clone(), params })
}

/// Returns a variable in global or constant memory. `None` for one without a size, or whose initial value has addresses.
fn variable(declared: &syntax::Variable) -> Option<Variable> {
    let here = matches!(declared.space, Space::Global | Space::Const)
        && declared.linkage != Linkage::Extern;
    let bytes = declared.bytes().filter(|bytes| here && *bytes > 0)?;
    let mut initial = Vec::new();
    for part in &declared.initial {
        let InitialValue::Bytes(run) = &part.value else { return None };
        let start = usize::try_from(part.offset).ok()?;
        if start.checked_add(run.len())? > MAX_INITIAL_BYTES {
            return None;
        }
        initial.resize(start, 0);
        initial.extend_from_slice(run);
    }
    Some(Variable { name: declared.name.clone(), bytes, initial })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_the_sizes_of_their_parameters_are_read() {
        let text = "
            // .entry not_this(
            .version 8.0 /* .entry nor_this( */
            .target sm_90
            .address_size 64
            .visible .entry saxpy(
                .param .u64 .ptr .global .align 16 saxpy_param_0,
                .param .f32 saxpy_param_1,
                .param .align 8 .b8 saxpy_param_2[24],
                .param .u32 saxpy_param_3
            ) .maxntid 256, 1, 1 { .reg .b64 %rd1; ld.param.u64 %rd1, [saxpy_param_0]; ret; }
            .func helper(.param .b64 x) { ret; }
            .entry nothing() { ret; }
            .entry bare { ret; }";
        let entry = |name: &str, params: &[(usize, usize)]| KernelEntry {
            name: name.into(),
            params: params.iter().map(|&(offset, bytes)| Param { offset, bytes }).collect(),
        };
        let saxpy = entry("saxpy", &[(0, 8), (8, 4), (16, 24), (40, 4)]);
        assert_eq!(saxpy.param_bytes(), 44);
        assert_eq!(
            parse(text).unwrap().entries,
            [saxpy, entry("nothing", &[]), entry("bare", &[])]
        );
    }

    #[test]
    fn variables_at_module_scope_are_read_with_their_initial_bytes() {
        let text = "
            .version 8.0
            .target sm_80
            .visible .global .align 4 .u32 counter;
            .const .align 2 .b16 table[2][3]={1, 0x203, -1};
            .global .attribute(.managed) .v2 .f32 pair = {0f3F800000, 0f00000000};
            .extern .global .u32 elsewhere;
            .global .u64 address = counter;
            .visible .entry k() { .shared .b8 tile[64]; { .reg .b32 %r1; ld.global.u32 %r1, [counter]; } ret; }
            .global .s8 last = 010;";
        let variable = |name: &str, bytes, initial: &[u8]| Variable {
            name: name.into(),
            bytes,
            initial: initial.into(),
        };
        assert_eq!(
            parse(text).unwrap().variables,
            [
                variable("counter", 4, &[]),
                variable("table", 12, &[1, 0, 3, 2, 255, 255]),
                variable("pair", 8, &[0, 0, 128, 63, 0, 0, 0, 0]),
                variable("last", 1, &[8]),
            ]
        );
    }

    #[test]
    fn what_is_not_ptx_is_refused() {
        assert_eq!(parse("extern \"C\" __global__ void f() {}"), None);
        assert_eq!(parse(".version 8.0 .target sm_80 .entry open(.param .u64 a"), None);
        assert_eq!(
            parse(".version 8.0 .target sm_80 .entry large(.param .b8 a[32765]) { ret; }"),
            None
        );
        assert_eq!(parse(""), None);
    }
}
