//! The plan of an import: the structs of a column, read and checked before anything is adopted.

use std::ffi::{c_char, c_void};

use crate::abi::{ArrowArray, ArrowSchema};
use crate::error::Path;
use crate::format::{Format, Layout};
use crate::shape::{self, Child, Need, Rows};
use crate::{ColumnError, Head};

/// The deepest tree of columns.
pub(crate) const MAX_DEPTH: usize = 64;
/// The most columns and buffers of a tree.
const MAX_PARTS: usize = 1 << 16;
/// The most bytes of all names, format strings and metadata of a tree.
const MAX_TEXT: usize = 1 << 24;

pub(crate) const SCHEMA: &str = "ArrowSchema";
pub(crate) const ARRAY: &str = "ArrowArray";

/// A column that can be adopted.
pub(crate) struct Plan {
    pub(crate) head: Head,
    pub(crate) rows: Rows,
    /// In the order of the specification, without the sizes of variadic buffers.
    pub(crate) buffers: Vec<PlannedBuffer>,
    /// The address of the sizes of variadic buffers, in device memory or in host memory.
    pub(crate) sizes: u64,
    pub(crate) children: Vec<Plan>,
    pub(crate) dictionary: Option<Box<Plan>>,
}

/// A buffer that can be adopted.
#[derive(Clone, Copy)]
pub(crate) struct PlannedBuffer {
    /// 0 for an absent one.
    pub(crate) ptr: u64,
    pub(crate) need: Need,
}

impl PlannedBuffer {
    /// Returns the bytes of the buffer; 0 while they are not known.
    pub(crate) fn bytes(&self) -> usize {
        match self.need {
            Need::Validity(bytes) | Need::Bytes(bytes) => bytes,
            Need::LastOffset { .. } | Need::Variadic => 0,
        }
    }
}

/// The rest of the limits of a tree.
pub(crate) struct Limits {
    parts: usize,
    text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { parts: MAX_PARTS, text: MAX_TEXT }
    }
}

impl Limits {
    fn take_parts(&mut self, count: usize) -> Option<()> {
        self.parts = self.parts.checked_sub(count)?;
        Some(())
    }

    fn take_text(&mut self, bytes: usize) -> Option<()> {
        self.text = self.text.checked_sub(bytes)?;
        Some(())
    }
}

impl Plan {
    /// Reads a column and all below it.
    ///
    /// # Safety
    ///
    /// Each is not null and not released, and its pointers are null or as the specification says.
    pub(crate) unsafe fn read(
        schema: *const ArrowSchema,
        array: *const ArrowArray,
        path: &Path<'_>,
        limits: &mut Limits,
    ) -> Result<Self, ColumnError> {
        // SAFETY: the caller's obligation. It stays as it is during the call.
        let schema = unsafe { &*schema };
        // SAFETY: as above.
        let array = unsafe { &*array };
        if path.depth() > MAX_DEPTH {
            let problem = format!("is too deep: columns are nested {MAX_DEPTH} times at most");
            return Err(path.invalid(SCHEMA, "children", problem));
        }
        // SAFETY: the caller's obligation.
        let head = unsafe { Head::read(schema, path, limits) }?;
        let layout = head.format.layout();
        let rows = Rows::read(array.length, array.offset, array.null_count, ARRAY, path)?;
        let count = |value: i64, of, field: &str, expected: Option<usize>| {
            let count = usize::try_from(value).ok();
            match count {
                Some(count) if expected.is_none_or(|it| it == count) => Ok(count),
                _ => {
                    let must = expected.map_or("0 or more".to_owned(), |it| it.to_string());
                    let problem =
                        format!("is {value}: it must be {must}, for the type {}", head.format);
                    Err(path.invalid(of, field, problem))
                }
            }
        };
        let children = count(schema.n_children, SCHEMA, "n_children", shape::children(layout))?;
        count(array.n_children, ARRAY, "n_children", Some(children))?;
        let expected = match layout {
            Layout::BinaryView => None,
            _ => shape::needs(layout, Rows { length: 0, ..rows }, 0).map(|it| it.len()),
        };
        let buffers = count(array.n_buffers, ARRAY, "n_buffers", expected)?;
        if *layout == Layout::BinaryView && buffers < 3 {
            let problem =
                format!("is {buffers}: it must be 3 or more, for the type {}", head.format);
            return Err(path.invalid(ARRAY, "n_buffers", problem));
        }
        limits.take_parts(buffers).and_then(|()| limits.take_parts(children + 1)).ok_or_else(
            || {
                let problem = format!("has more than {MAX_PARTS} columns and buffers below it");
                path.invalid(ARRAY, "children", problem)
            },
        )?;
        // SAFETY: the caller's obligation.
        let pointers = unsafe { pointers(array, buffers, path) }?;
        let planned = plan_buffers(&head, rows, &pointers, path)?;
        // SAFETY: as above.
        let children = unsafe { read_children(schema, array, children, path, limits) }?;
        // SAFETY: as above.
        let dictionary = unsafe { read_dictionary(schema, array, path, limits) }?;
        let rows = match planned.first() {
            // Without a bit for each row, none is null.
            Some(PlannedBuffer { ptr: 0, need: Need::Validity(_) }) => {
                Rows { null_count: Some(0), ..rows }
            }
            _ => rows,
        };
        let sizes = match layout {
            Layout::BinaryView => pointers.last().map_or(0, |ptr| ptr.addr() as u64),
            _ => 0,
        };
        let plan = Self { head, rows, buffers: planned, sizes, children, dictionary };
        let below: Vec<Child<'_>> = plan.children.iter().map(Self::as_child).collect();
        shape::check(ARRAY, path, plan.as_child(), &below, plan.dictionary.is_some())?;
        Ok(plan)
    }

    pub(crate) fn as_child(&self) -> Child<'_> {
        Child { format: &self.head.format, rows: self.rows, children: self.children.len() }
    }

    /// Calls `each` for this column and all below it, with their paths.
    pub(crate) fn walk<E>(
        &self,
        path: &Path<'_>,
        each: &mut impl FnMut(&Self, &Path<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        each(self, path)?;
        for (index, child) in self.children.iter().enumerate() {
            child.walk(&Path::Child { of: path, index }, each)?;
        }
        match &self.dictionary {
            Some(dictionary) => dictionary.walk(&Path::Dictionary { of: path }, each),
            None => Ok(()),
        }
    }
}

/// Returns the addresses of the buffers.
///
/// # Safety
///
/// As [`Plan::read`]; the array says that it has that many.
unsafe fn pointers(
    array: &ArrowArray,
    count: usize,
    path: &Path<'_>,
) -> Result<Vec<*const c_void>, ColumnError> {
    match (count, array.buffers.is_null()) {
        (0, _) => Ok(Vec::new()),
        (_, true) => {
            Err(path.invalid(ARRAY, "buffers", format_args!("is null: it must have {count}")))
        }
        // SAFETY: the caller's obligation.
        _ => Ok(unsafe { std::slice::from_raw_parts(array.buffers, count) }.to_vec()),
    }
}

fn plan_buffers(
    head: &Head,
    rows: Rows,
    pointers: &[*const c_void],
    path: &Path<'_>,
) -> Result<Vec<PlannedBuffer>, ColumnError> {
    let layout = head.format.layout();
    let is_variadic = *layout == Layout::BinaryView;
    let listed = pointers.len() - usize::from(is_variadic);
    let needs = shape::needs(layout, rows, listed)
        .ok_or_else(|| path.invalid(ARRAY, "length", "is too large for the size of the values"))?;
    let mut planned = Vec::with_capacity(needs.len());
    for (index, need) in needs.into_iter().enumerate() {
        let ptr = pointers[index].addr() as u64;
        let invalid =
            |problem: String| Err(path.invalid(ARRAY, format_args!("buffers[{index}]"), problem));
        let is_missing = match need {
            Need::Validity(_) => rows.null_count.is_some_and(|count| count > 0),
            Need::Bytes(bytes) => bytes > 0,
            Need::LastOffset { .. } | Need::Variadic => false,
        };
        if ptr == 0 && is_missing {
            let problem = match need {
                Need::Validity(_) => "is null, but some rows are null".to_owned(),
                _ => format!("is null: it must have the bytes of {} rows", rows.end()),
            };
            return invalid(problem);
        }
        let buffer = PlannedBuffer { ptr, need };
        let bytes = buffer.bytes();
        if ptr.checked_add(bytes as u64).is_none() {
            let problem = format!("is {ptr:#x}: {bytes} bytes exceed the address space there");
            return invalid(problem);
        }
        planned.push(buffer);
    }
    if is_variadic && listed > 2 && pointers[listed].is_null() {
        let problem = "is null: it must have the sizes of the buffers before it";
        return Err(path.invalid(ARRAY, format_args!("buffers[{listed}]"), problem));
    }
    Ok(planned)
}

/// # Safety
///
/// As [`Plan::read`]; both say that they have `count` children.
unsafe fn read_children(
    schema: &ArrowSchema,
    array: &ArrowArray,
    count: usize,
    path: &Path<'_>,
    limits: &mut Limits,
) -> Result<Vec<Plan>, ColumnError> {
    for (of, is_null) in [(SCHEMA, schema.children.is_null()), (ARRAY, array.children.is_null())] {
        if is_null && count > 0 {
            return Err(path.invalid(
                of,
                "children",
                format_args!("is null: it must have {count}"),
            ));
        }
    }
    let mut children = Vec::new();
    for index in 0..count {
        let at = Path::Child { of: path, index };
        // SAFETY: the caller's obligation.
        let schema = unsafe { schema.children.add(index).read() };
        // SAFETY: as above.
        let array = unsafe { array.children.add(index).read() };
        // SAFETY: as above.
        unsafe { refuse_released(schema, array, &at) }?;
        // SAFETY: as above; neither is null or released.
        children.push(unsafe { Plan::read(schema, array, &at, limits) }?);
    }
    Ok(children)
}

/// # Safety
///
/// As [`Plan::read`].
unsafe fn read_dictionary(
    schema: &ArrowSchema,
    array: &ArrowArray,
    path: &Path<'_>,
    limits: &mut Limits,
) -> Result<Option<Box<Plan>>, ColumnError> {
    let at = Path::Dictionary { of: path };
    match (schema.dictionary.is_null(), array.dictionary.is_null()) {
        (true, true) => Ok(None),
        (false, false) => {
            // SAFETY: the caller's obligation.
            unsafe { refuse_released(schema.dictionary, array.dictionary, &at) }?;
            // SAFETY: as above; neither is null or released.
            let plan = unsafe { Plan::read(schema.dictionary, array.dictionary, &at, limits) };
            plan.map(|plan| Some(Box::new(plan)))
        }
        (true, false) => Err(path.invalid(SCHEMA, "dictionary", "is null, but the array has one")),
        (false, true) => Err(path.invalid(ARRAY, "dictionary", "is null, but the schema has one")),
    }
}

/// # Safety
///
/// Each is null or of a struct that can be read.
unsafe fn refuse_released(
    schema: *const ArrowSchema,
    array: *const ArrowArray,
    at: &Path<'_>,
) -> Result<(), ColumnError> {
    if schema.is_null() {
        return Err(ColumnError::invalid(format_args!("{SCHEMA}{at}"), "is null"));
    }
    if array.is_null() {
        return Err(ColumnError::invalid(format_args!("{ARRAY}{at}"), "is null"));
    }
    let problem = "is null: the struct is released, or was moved out";
    // SAFETY: the caller's obligation; it is not null.
    if unsafe { &*schema }.is_released() {
        return Err(at.invalid(SCHEMA, "release", problem));
    }
    // SAFETY: as above.
    if unsafe { &*array }.is_released() {
        return Err(at.invalid(ARRAY, "release", problem));
    }
    Ok(())
}

impl Head {
    /// # Safety
    ///
    /// The pointers of the schema are null or as the specification says.
    unsafe fn read(
        schema: &ArrowSchema,
        path: &Path<'_>,
        limits: &mut Limits,
    ) -> Result<Self, ColumnError> {
        if schema.format.is_null() {
            return Err(path.invalid(SCHEMA, "format", "is null: it must be a format string"));
        }
        // SAFETY: the caller's obligation.
        let format = unsafe { text(schema.format, limits) }
            .and_then(|text| Format::parse(&text))
            .map_err(|problem| path.invalid(SCHEMA, "format", problem))?;
        let name = match schema.name.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { text(schema.name, limits) }
                .map_err(|problem| path.invalid(SCHEMA, "name", problem))?,
        };
        let metadata = match schema.metadata.is_null() {
            true => Vec::new(),
            // SAFETY: as above.
            false => unsafe { metadata(schema.metadata.cast(), limits) }
                .map_err(|problem| path.invalid(SCHEMA, "metadata", problem))?,
        };
        Ok(Self { format, name, flags: schema.flags, metadata })
    }
}

const TOO_LONG: &str = "is too long: the texts of a column have 16 MiB at most";

/// Returns the text that ends with a NUL.
///
/// # Safety
///
/// The text ends with a NUL.
unsafe fn text(from: *const c_char, limits: &mut Limits) -> Result<String, String> {
    let mut bytes = Vec::new();
    loop {
        // SAFETY: the caller's obligation: the NUL was not reached.
        let byte = unsafe { from.cast::<u8>().add(bytes.len()).read() };
        if byte == 0 {
            break;
        }
        limits.take_text(1).ok_or(TOO_LONG)?;
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())
}

/// Returns the bytes of the metadata: a number of pairs, and each key and value with its length.
///
/// # Safety
///
/// The metadata is as the specification says, except that a number may be negative.
unsafe fn metadata(from: *const u8, limits: &mut Limits) -> Result<Vec<u8>, String> {
    let mut bytes: Vec<u8> = Vec::new();
    // SAFETY: the caller's obligation.
    let pairs = unsafe { number(from, &mut bytes, limits) }?;
    for _ in 0..pairs.checked_mul(2).ok_or(TOO_LONG)? {
        // SAFETY: as above.
        let length = unsafe { number(from, &mut bytes, limits) }?;
        limits.take_text(length).ok_or(TOO_LONG)?;
        // SAFETY: as above.
        bytes.extend(unsafe { std::slice::from_raw_parts(from.add(bytes.len()), length) });
    }
    Ok(bytes)
}

/// # Safety
///
/// A number follows the bytes that were read.
unsafe fn number(
    from: *const u8,
    bytes: &mut Vec<u8>,
    limits: &mut Limits,
) -> Result<usize, String> {
    limits.take_text(4).ok_or(TOO_LONG)?;
    // SAFETY: the caller's obligation.
    let number = unsafe { from.add(bytes.len()).cast::<[u8; 4]>().read() };
    bytes.extend(number);
    let number = i32::from_ne_bytes(number);
    usize::try_from(number).map_err(|_| format!("has the length {number}: it must be 0 or more"))
}
