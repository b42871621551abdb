//! The dotted name of an instruction between lanes, into the instruction.

use super::element::Element;
use super::fragment::{Fragment, Layout};
use super::product::{Product, Rule};
use super::reduce::{Fold, Reduce};
use super::shuffle::{Mode, Shuffle};
use super::transfer::{Matrix, Transfer, Window};
use super::vote::{Match, Poll, Vote};
use super::{Exchange, Instruction};
use dmr_ptx_syntax::Type;

/// Decodes an instruction: `name` is the part before the first dot, `modifiers` the parts after it.
///
/// Returns `None` for a name that is not of an instruction between lanes, and an error that says
/// what is not supported.
pub fn decode(name: &str, modifiers: &[&str]) -> Option<Result<Instruction, String>> {
    let decoded = match name {
        "shfl" => shuffle(modifiers),
        "vote" => vote(modifiers),
        "match" => matching(modifiers),
        "redux" => reduce(modifiers),
        "activemask" => exact(modifiers, &["b32"], Exchange::ActiveMask),
        "elect" => exact(modifiers, &["sync"], Exchange::Elect),
        "movmatrix" => {
            exact(modifiers, &["sync", "aligned", "m8n8", "trans", "b16"], Exchange::MoveMatrix)
        }
        "mma" => mma(modifiers),
        "wmma" => wmma(modifiers),
        "ldmatrix" => rows(modifiers, false),
        "stmatrix" => rows(modifiers, true),
        _ => return None,
    };
    Some(decoded.map_err(|why| format!("{name}.{}: {why}", modifiers.join("."))))
}

type Decoded = Result<Instruction, String>;

fn unknown(modifier: &str) -> String {
    format!("the modifier .{modifier} is not supported")
}

fn exact(modifiers: &[&str], expected: &[&str], exchange: Exchange) -> Decoded {
    if modifiers == expected {
        return Ok(Instruction::Exchange(exchange));
    }
    Err(format!("only .{} is supported", expected.join(".")))
}

fn shuffle(modifiers: &[&str]) -> Decoded {
    let (sync, rest) = split_sync(modifiers);
    let mode = match rest {
        ["up", "b32"] => Mode::Up,
        ["down", "b32"] => Mode::Down,
        ["bfly", "b32"] => Mode::Butterfly,
        ["idx", "b32"] => Mode::Index,
        _ => return Err("a mode (.up, .down, .bfly, .idx) and .b32 are expected".to_owned()),
    };
    Ok(Instruction::Exchange(Exchange::Shuffle(Shuffle { mode, sync })))
}

fn vote(modifiers: &[&str]) -> Decoded {
    let (sync, rest) = split_sync(modifiers);
    let poll = match rest {
        ["all", "pred"] => Poll::All,
        ["any", "pred"] => Poll::Any,
        ["uni", "pred"] => Poll::Uniform,
        ["ballot", "b32"] => Poll::Ballot,
        _ => {
            return Err(
                "a mode (.all.pred, .any.pred, .uni.pred, .ballot.b32) is expected".to_owned()
            );
        }
    };
    Ok(Instruction::Exchange(Exchange::Vote(Vote { poll, sync })))
}

fn split_sync<'a, 'b>(modifiers: &'a [&'b str]) -> (bool, &'a [&'b str]) {
    match modifiers {
        ["sync", rest @ ..] => (true, rest),
        _ => (false, modifiers),
    }
}

fn matching(modifiers: &[&str]) -> Decoded {
    let (all, ty) = match modifiers {
        ["all", "sync", ty] => (true, ty),
        ["any", "sync", ty] => (false, ty),
        _ => return Err(".all or .any, .sync and a type are expected".to_owned()),
    };
    let ty = match *ty {
        "b32" => Type::B32,
        "b64" => Type::B64,
        _ => return Err(unknown(ty)),
    };
    Ok(Instruction::Exchange(Exchange::Match(Match { all, ty })))
}

fn reduce(modifiers: &[&str]) -> Decoded {
    let ["sync", fold, rest @ ..] = modifiers else {
        return Err(".sync and an operation are expected".to_owned());
    };
    let fold = match *fold {
        "add" => Fold::Add,
        "min" => Fold::Min,
        "max" => Fold::Max,
        "and" => Fold::And,
        "or" => Fold::Or,
        "xor" => Fold::Xor,
        _ => return Err(unknown(fold)),
    };
    let (abs, rest) = match rest {
        ["abs", rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let (nan, rest) = match rest {
        ["NaN", rest @ ..] => (true, rest),
        _ => (false, rest),
    };
    let ty = match (rest, fold) {
        (["u32"], Fold::Add | Fold::Min | Fold::Max) => Type::U32,
        (["s32"], Fold::Add | Fold::Min | Fold::Max) => Type::S32,
        (["b32"], Fold::And | Fold::Or | Fold::Xor) => Type::B32,
        (["f32"], Fold::Min | Fold::Max) => Type::F32,
        _ => return Err("this type is not supported with this operation".to_owned()),
    };
    if (abs || nan) && ty != Type::F32 {
        return Err(".abs and .NaN need .f32".to_owned());
    }
    Ok(Instruction::Exchange(Exchange::Reduce(Reduce { fold, ty, abs, nan })))
}

/// The modifiers of a matrix instruction, sorted by kind.
#[derive(Default)]
struct Modifiers<'a> {
    shape: Option<[usize; 3]>,
    /// `.row` is false, `.col` is true.
    by_columns: Vec<bool>,
    elements: Vec<Element>,
    window: Option<Window>,
    saturate: bool,
    bits: Option<Rule>,
    /// `.a`, `.b`, `.c` or `.d`.
    operand: Option<&'a str>,
}

impl<'a> Modifiers<'a> {
    fn of(modifiers: &[&'a str]) -> Result<Self, String> {
        let mut sorted = Self::default();
        for &modifier in modifiers {
            match modifier {
                "sync" | "aligned" | "popc" | "rn" | "kind::f8f6f4" => {}
                "row" => sorted.by_columns.push(false),
                "col" => sorted.by_columns.push(true),
                "satfinite" => sorted.saturate = true,
                "xor" => sorted.bits = Some(Rule::Xor),
                "and" => sorted.bits = Some(Rule::And),
                "global" => sorted.window = Some(Window::Global),
                "shared" | "shared::cta" => sorted.window = Some(Window::Shared),
                "a" | "b" | "c" | "d" => sorted.operand = Some(modifier),
                _ => match (shape(modifier), Element::from_name(modifier)) {
                    (Some(shape), _) => sorted.shape = Some(shape),
                    (_, Some(element)) => sorted.elements.push(element),
                    _ => return Err(unknown(modifier)),
                },
            }
        }
        if !modifiers.contains(&"sync") || !modifiers.contains(&"aligned") {
            return Err(".sync.aligned is expected".to_owned());
        }
        Ok(sorted)
    }
}

/// Returns M, N and K of `m16n8k16`.
fn shape(modifier: &str) -> Option<[usize; 3]> {
    let (m, rest) = modifier.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

const NO_SUCH_SHAPE: &str = "this shape is not supported with these types";

fn mma(modifiers: &[&str]) -> Decoded {
    use Element::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    let sorted = Modifiers::of(modifiers)?;
    let (Some(shape), &[d, a, b, c]) = (sorted.shape, &sorted.elements[..]) else {
        return Err("a shape and four types are expected".to_owned());
    };
    let &[a_by_columns, b_by_columns] = &sorted.by_columns[..] else {
        return Err("two of .row and .col are expected".to_owned());
    };
    if (shape, a, b) == ([8, 8, 4], F16, F16) {
        return quad(d, c, a_by_columns, b_by_columns);
    }
    if a_by_columns || !b_by_columns {
        return Err("only .row.col is supported".to_owned());
    }
    let half_or_single = |element| matches!(element, F16 | F32);
    let is_supported = match (a, b) {
        (F16, F16) => matches!(shape, [16, 8, 8 | 16]) && half_or_single(c) && half_or_single(d),
        (Bf16, Bf16) => matches!(shape, [16, 8, 8 | 16]) && (c, d) == (F32, F32),
        (Tf32, Tf32) => matches!(shape, [16, 8, 4 | 8]) && (c, d) == (F32, F32),
        (E4m3 | E5m2, E4m3 | E5m2) => {
            matches!(shape, [16, 8, 16 | 32]) && half_or_single(c) && half_or_single(d)
        }
        (F64, F64) => matches!(shape, [8, 8, 4] | [16, 8, 4 | 8 | 16]) && (c, d) == (F64, F64),
        (S8 | U8, S8 | U8) => {
            matches!(shape, [8, 8, 16] | [16, 8, 16 | 32]) && (c, d) == (S32, S32)
        }
        (S4 | U4, S4 | U4) => {
            matches!(shape, [8, 8, 32] | [16, 8, 32 | 64]) && (c, d) == (S32, S32)
        }
        (B1, B1) => matches!(shape, [8, 8, 128] | [16, 8, 128 | 256]) && (c, d) == (S32, S32),
        _ => false,
    };
    if !is_supported {
        return Err(NO_SUCH_SHAPE.to_owned());
    }
    let [m, n, k] = shape;
    let fragment = |element: Element, rows, columns, layout| Fragment {
        element,
        rows,
        columns,
        registers: rows * columns / element.per_register() / 32,
        layout,
    };
    product(Product {
        a: fragment(a, m, k, Layout::Left),
        b: fragment(b, k, n, Layout::Right),
        c: fragment(c, m, n, Layout::Sum),
        d: fragment(d, m, n, Layout::Sum),
        rule: rule(a, &sorted)?,
    })
}

/// Decodes the four products of `mma.m8n8k4` with halves.
fn quad(d: Element, c: Element, a_by_columns: bool, b_by_columns: bool) -> Decoded {
    let sum = |element: Element| {
        let layout = if element == Element::F16 { Layout::QuadSum16 } else { Layout::QuadSum32 };
        let registers = 8 / element.per_register();
        Fragment { element, rows: 8, columns: 8, registers, layout }
    };
    if !matches!((c, d), (Element::F16 | Element::F32, Element::F16 | Element::F32)) {
        return Err(NO_SUCH_SHAPE.to_owned());
    }
    let element = Element::F16;
    let left = Layout::QuadLeft { by_columns: a_by_columns };
    let right = Layout::QuadRight { by_columns: b_by_columns };
    product(Product {
        a: Fragment { element, rows: 8, columns: 4, registers: 2, layout: left },
        b: Fragment { element, rows: 4, columns: 8, registers: 2, layout: right },
        c: sum(c),
        d: sum(d),
        rule: Rule::Float,
    })
}

fn product(product: Product) -> Decoded {
    Ok(Instruction::Exchange(Exchange::Product(product)))
}

fn rule(a: Element, sorted: &Modifiers<'_>) -> Result<Rule, String> {
    Ok(match a {
        Element::B1 => sorted
            .bits
            .ok_or_else(|| "an operation (.xor.popc, .and.popc) is expected".to_owned())?,
        Element::S4 | Element::U4 | Element::S8 | Element::U8 => {
            Rule::Integer { saturate: sorted.saturate }
        }
        Element::F64 => Rule::Double,
        _ => Rule::Float,
    })
}

fn wmma(modifiers: &[&str]) -> Decoded {
    let Some((&operation, modifiers)) = modifiers.split_first() else {
        return Err(".load, .store or .mma is expected".to_owned());
    };
    let sorted = Modifiers::of(modifiers)?;
    let Some(shape) = sorted.shape else {
        return Err("a shape is expected".to_owned());
    };
    match operation {
        "load" | "store" => {
            let (Some(operand), &[element], &[by_columns]) =
                (sorted.operand, &sorted.elements[..], &sorted.by_columns[..])
            else {
                return Err("a matrix, a layout and a type are expected".to_owned());
            };
            let is_store = operation == "store";
            if is_store != (operand == "d") {
                return Err(unknown(operand));
            }
            let matrix = Matrix::Whole { fragment: dealt(shape, operand, element)?, by_columns };
            let window = sorted.window.unwrap_or(Window::Generic);
            Ok(Instruction::Transfer(Transfer { is_store, window, matrix }))
        }
        "mma" => {
            let (d, a, b, c) = match sorted.elements[..] {
                [d, a, b, c] => (d, a, b, c),
                [d, c] => (d, Element::F16, Element::F16, c),
                _ => return Err("two or four types are expected".to_owned()),
            };
            let sums_fit = match a {
                Element::F16 => d != Element::S32 && c != Element::S32,
                Element::Bf16 | Element::Tf32 => (c, d) == (Element::F32, Element::F32),
                Element::F64 => (c, d) == (Element::F64, Element::F64),
                _ => (c, d) == (Element::S32, Element::S32),
            };
            if !sums_fit || a.is_integer() != b.is_integer() || (!a.is_integer() && a != b) {
                return Err(NO_SUCH_SHAPE.to_owned());
            }
            product(Product {
                a: dealt(shape, "a", a)?,
                b: dealt(shape, "b", b)?,
                c: dealt(shape, "c", c)?,
                d: dealt(shape, "d", d)?,
                rule: rule(a, &sorted)?,
            })
        }
        _ => Err(unknown(operation)),
    }
}

/// Returns a matrix of `wmma`: `operand` is `a`, `b`, `c` or `d`.
fn dealt(shape: [usize; 3], operand: &str, element: Element) -> Result<Fragment, String> {
    use Element::{B1, Bf16, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    let large = matches!(shape, [16, 16, 16] | [32, 8, 16] | [8, 32, 16]);
    let is_factor = matches!(operand, "a" | "b");
    let is_supported = match element {
        F16 => large,
        Bf16 | S8 | U8 => large && is_factor,
        F32 => (large || shape == [16, 16, 8]) && !is_factor,
        S32 => (large || matches!(shape, [8, 8, 32 | 128])) && !is_factor,
        Tf32 => shape == [16, 16, 8] && is_factor,
        F64 => shape == [8, 8, 4],
        S4 | U4 => shape == [8, 8, 32] && is_factor,
        B1 => shape == [8, 8, 128] && is_factor,
        _ => false,
    };
    if !is_supported {
        return Err(NO_SUCH_SHAPE.to_owned());
    }
    let [m, n, k] = shape;
    let (rows, columns) = match operand {
        "a" => (m, k),
        "b" => (k, n),
        _ => (m, n),
    };
    // The factors of a product of halves have eight registers in every shape.
    let registers =
        if element == F16 && is_factor { 8 } else { rows * columns / element.per_register() / 32 };
    let layout = if is_factor { Layout::Dealt } else { Layout::Sum };
    Ok(Fragment { element, rows, columns, registers, layout })
}

fn rows(modifiers: &[&str], is_store: bool) -> Decoded {
    let mut count = None;
    let mut transpose = false;
    let mut window = Window::Generic;
    // Compilers write the shape before or behind the number of matrices.
    let required = ["sync", "aligned", "m8n8", "b16"];
    if !required.iter().all(|name| modifiers.contains(name)) {
        return Err("only .sync.aligned.m8n8 and .b16 are supported".to_owned());
    }
    for &modifier in modifiers {
        match modifier {
            "x1" => count = Some(1),
            "x2" => count = Some(2),
            "x4" => count = Some(4),
            "trans" => transpose = true,
            "shared" | "shared::cta" => window = Window::Shared,
            _ if required.contains(&modifier) => {}
            _ => return Err(unknown(modifier)),
        }
    }
    let Some(count) = count else {
        return Err("a number of matrices (.x1, .x2, .x4) is expected".to_owned());
    };
    Ok(Instruction::Transfer(Transfer {
        is_store,
        window,
        matrix: Matrix::Rows { count, transpose },
    }))
}
