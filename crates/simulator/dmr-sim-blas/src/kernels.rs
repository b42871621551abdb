//! The kernels, in PTX: templates, filled in for the types of elements.

/// The type of an element in memory, and its name in PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I32,
}

use Element::{Bf16, F16, F32, F64, I8, I32};

/// A kernel for products.
pub(crate) struct Product {
    pub(crate) name: &'static str,
    /// The elements of A and B.
    pub(crate) input: Element,
    /// The elements of C.
    pub(crate) output: Element,
    /// The type of alpha and beta.
    pub(crate) scale: Element,
}

const fn product(name: &'static str, input: Element, output: Element, scale: Element) -> Product {
    Product { name, input, output, scale }
}

pub(crate) const PRODUCTS: &[Product] = &[
    product("cublas_gemm_f32", F32, F32, F32),
    product("cublas_gemm_f64", F64, F64, F64),
    product("cublas_gemm_f16_compute_f16", F16, F16, F16),
    product("cublas_gemm_f16", F16, F16, F32),
    product("cublas_gemm_bf16", Bf16, Bf16, F32),
    product("cublas_gemm_f16_to_f32", F16, F32, F32),
    product("cublas_gemm_bf16_to_f32", Bf16, F32, F32),
    product("cublas_gemm_i8_to_f32", I8, F32, F32),
    product("cublas_gemm_i8_to_i32", I8, I32, I32),
    product("cublas_gemv_f32", F32, F32, F32),
    product("cublas_gemv_f64", F64, F64, F64),
    product("cublas_dot_f32", F32, F32, F32),
    product("cublas_dot_f64", F64, F64, F64),
];

impl Element {
    pub(crate) fn bytes(self) -> i64 {
        match self {
            I8 => 1,
            F16 | Bf16 => 2,
            F32 | I32 => 4,
            F64 => 8,
        }
    }

    /// Returns the type of sums for alpha and beta of this type.
    fn sum(self) -> Element {
        if matches!(self, F64 | I32) { self } else { F32 }
    }

    fn ptx(self) -> &'static str {
        match self {
            F32 => "f32",
            F64 => "f64",
            _ => "s32",
        }
    }

    fn zero(self) -> &'static str {
        match self {
            F32 => "0f00000000",
            F64 => "0d0000000000000000",
            _ => "0",
        }
    }

    /// Returns instructions that load an element of this type as a `sum`.
    fn load(self, sum: Element, space: &str, to: &str, from: &str) -> String {
        match (self, sum) {
            (F16, _) => format!("ld.{space}.b16 %h1, [{from}];\ncvt.f32.f16 {to}, %h1;"),
            (Bf16, _) => format!(
                "ld.{space}.u16 %h1, [{from}];\ncvt.u32.u16 %r9, %h1;\nshl.b32 %r9, %r9, 16;\nmov.b32 {to}, %r9;"
            ),
            (I8, F32) => format!("ld.{space}.s8 %r9, [{from}];\ncvt.rn.f32.s32 {to}, %r9;"),
            (I8, _) => format!("ld.{space}.s8 {to}, [{from}];"),
            (F32, F64) => format!("ld.{space}.f32 %f9, [{from}];\ncvt.f64.f32 {to}, %f9;"),
            _ => format!("ld.{space}.{} {to}, [{from}];", self.ptx()),
        }
    }

    /// Returns instructions that store a `sum` as an element of this type.
    fn store(self, sum: Element, to: &str, from: &str) -> String {
        match (self, sum) {
            (F16, _) => format!("cvt.rn.f16.f32 %h1, {from};\nst.global.b16 [{to}], %h1;"),
            (Bf16, _) => format!("cvt.rn.bf16.f32 %h1, {from};\nst.global.b16 [{to}], %h1;"),
            (F32, F64) => format!("cvt.rn.f32.f64 %f9, {from};\nst.global.f32 [{to}], %f9;"),
            _ => format!("st.global.{} [{to}], {from};", self.ptx()),
        }
    }

    fn multiply(self) -> &'static str {
        match self {
            F32 => "mul.f32",
            F64 => "mul.f64",
            _ => "mul.lo.s32",
        }
    }

    fn multiply_add(self) -> &'static str {
        match self {
            F32 => "fma.rn.f32",
            F64 => "fma.rn.f64",
            _ => "mad.lo.s32",
        }
    }
}

/// Replaces each `{key}` of a template.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let replace =
        |text: String, (key, value): &(&str, &str)| text.replace(&format!("{{{key}}}"), value);
    values.iter().fold(template.to_owned(), replace)
}

/// Returns the text of the module with all kernels.
pub(crate) fn module() -> String {
    let mut text = String::from(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 8 .b8 cublas_result[8];\n",
    );
    PRODUCTS.iter().for_each(|kernel| text += &kernel.text());
    for element in [F32, F64] {
        for name in ["axpy", "scal", "copy", "swap"] {
            text += &vector(name, element);
        }
        for name in ["asum", "nrm2", "iamax", "iamin"] {
            text += &reduction(name, element);
        }
    }
    text
}

/// A scalar argument: its bits, or where it is in device memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Scalar {
    pub(crate) bits: u64,
    pub(crate) address: u64,
}

/// A matrix argument: its address, and the steps in bytes to the next row, column and matrix of a
/// batch.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Operand {
    pub(crate) address: u64,
    pub(crate) row: i64,
    pub(crate) column: i64,
    pub(crate) batch: i64,
}

/// The arguments of `product.ptx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProductArguments {
    pub(crate) threads: u64,
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) alpha: Scalar,
    pub(crate) beta: Scalar,
    /// Not zero: the addresses are those of arrays of addresses.
    pub(crate) indirect: u64,
}

/// A vector argument: its first element, and the step in bytes to the next.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) address: u64,
    pub(crate) step: i64,
}

/// The arguments of `vector.ptx` and `reduction.ptx`. In the latter `y` is the result.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct VectorArguments {
    pub(crate) threads: u64,
    pub(crate) n: u64,
    pub(crate) x: Strided,
    pub(crate) y: Strided,
    pub(crate) alpha: Scalar,
}

impl Product {
    fn text(&self) -> String {
        let sum = self.scale.sum();
        let values = [
            ("name", self.name),
            ("sum", sum.ptx()),
            ("zero", sum.zero()),
            ("multiply", sum.multiply()),
            ("multiply_add", sum.multiply_add()),
            ("alpha", &self.scale.load(sum, "param", "%v1", "args+128")),
            ("load_alpha", &self.scale.load(sum, "global", "%v1", "%d2")),
            ("beta", &self.scale.load(sum, "param", "%v2", "args+144")),
            ("load_beta", &self.scale.load(sum, "global", "%v2", "%d2")),
            ("load_a", &self.input.load(sum, "global", "%v4", "%d10")),
            ("load_b", &self.input.load(sum, "global", "%v5", "%d11")),
            ("load_c", &self.output.load(sum, "global", "%v7", "%d12")),
            ("store_c", &self.output.store(sum, "%d12", "%v6")),
        ];
        fill(include_str!("kernels/product.ptx"), &values)
    }
}

fn vector(name: &str, element: Element) -> String {
    let work = match name {
        "axpy" => {
            "ld.global.{sum} %v3, [%d4];\n{multiply_add} %v3, %v1, %v2, %v3;\nst.global.{sum} [%d4], %v3;"
        }
        "scal" => "{multiply} %v2, %v1, %v2;\nst.global.{sum} [%d3], %v2;",
        "copy" => "st.global.{sum} [%d4], %v2;",
        _ => {
            "ld.global.{sum} %v3, [%d4];\nst.global.{sum} [%d4], %v2;\nst.global.{sum} [%d3], %v3;"
        }
    };
    let values = [
        ("name", &*format!("cublas_{name}_{}", element.ptx())),
        ("work", work),
        ("sum", element.ptx()),
        ("multiply", element.multiply()),
        ("multiply_add", element.multiply_add()),
    ];
    fill(include_str!("kernels/vector.ptx"), &values)
}

fn reduction(name: &str, element: Element) -> String {
    const SELECT: &str = "abs.f64 %v1, %v1;
setp.eq.u32 %p2, %r4, 0;
setp.{comparison}.or.f64 %p3, %v1, %v2, %p2;
@%p3 mov.f64 %v2, %v1;
@%p3 mov.u32 %r4, %r5;";
    let sum = element.store(F64, "%d4", "%v2");
    let (step, store) = match name {
        "asum" => ("abs.f64 %v1, %v1;\nadd.f64 %v2, %v2, %v1;", sum),
        "nrm2" => ("fma.rn.f64 %v2, %v1, %v1, %v2;", format!("sqrt.rn.f64 %v2, %v2;\n{sum}")),
        _ => (SELECT, "st.global.u32 [%d4], %r4;".to_owned()),
    };
    let values = [
        ("name", &*format!("cublas_{name}_{}", element.ptx())),
        ("load", &element.load(F64, "global", "%v1", "%d3")),
        ("step", step),
        ("store", &store),
        ("comparison", if name == "iamax" { "gt" } else { "lt" }),
    ];
    fill(include_str!("kernels/reduction.ptx"), &values)
}
