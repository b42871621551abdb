//! The forms of instructions that are compared with a GPU: their kernels, their operands, their
//! digests.
//!
//! A form is a kernel whose thread `n` reads the words of row `n` and writes one or more words. The
//! same text runs on a GPU and on the interpreter.

pub(crate) mod floats;
pub(crate) mod integers;
pub(crate) mod lanes;
pub(crate) mod operands;
pub(crate) mod other;
pub(crate) mod products;

use operands::Kind;

/// The threads of a block.
pub(crate) const BLOCK: u32 = 128;

/// An instruction with its modifiers, or a few that belong together.
pub(crate) struct Form {
    pub(crate) name: String,
    /// The kinds of the operands: words of a row.
    pub(crate) kinds: Vec<Kind>,
    /// The number of the results: words of a row.
    pub(crate) results: usize,
    /// Instructions from the registers `%x0`... to `%o0`..., all of 64 bits.
    pub(crate) body: String,
    /// The number of rows: a multiple of [`BLOCK`].
    pub(crate) rows: u32,
    /// Set if the ISA gives a bound instead of a result.
    pub(crate) is_approximate: bool,
}

impl Form {
    /// Returns the PTX of a kernel with the name `entry`.
    pub(crate) fn kernel(&self, entry: &str) -> String {
        let sources = self.kinds.len();
        let results = self.results;
        let mut text = format!(
            ".visible .entry {entry}(.param .u64 from, .param .u64 to)\n{{\n\
             .reg .b64 %x<{}>;\n.reg .b64 %o<{}>;\n.reg .b64 %t<9>;\n.reg .b32 %r<64>;\n.reg .b16 %h<32>;\n.reg .pred %p<16>;\n\
             .reg .f32 %f<32>;\n.reg .f64 %d<32>;\n.reg .b64 %base;\n\
             ld.param.u64 %t1, [from];\nld.param.u64 %t2, [to];\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %tid.x;\n\
             shl.b32 %r1, %r1, 7;\nadd.u32 %r3, %r1, %r2;\nmul.wide.u32 %t3, %r3, {};\nadd.u64 %t1, %t1, %t3;\n\
             mul.wide.u32 %t3, %r3, {};\nadd.u64 %base, %t2, %t3;\n",
            sources + 1,
            results + 1,
            8 * sources,
            8 * results,
        );
        for n in 0..sources {
            text += &format!("ld.global.b64 %x{n}, [%t1+{}];\n", 8 * n);
        }
        text += &self.body;
        text += "\n";
        for n in 0..results {
            text += &format!("st.global.b64 [%base+{}], %o{n};\n", 8 * n);
        }
        text += "ret;\n}\n";
        text
    }

    /// Returns the seed of the operands: of the kinds alone, so that forms share tables.
    pub(crate) fn seed(&self) -> u64 {
        digest(format!("{:?}", self.kinds).bytes().map(u64::from))
    }
}

/// The blocks of threads whose results are in a digest: every fourth one.
pub(crate) const SAMPLED: usize = 4;

impl Form {
    /// Returns the words of the rows that a digest covers, of `width` words a row.
    pub(crate) fn sample<'a>(
        &self,
        words: &'a [u64],
        width: usize,
    ) -> impl Iterator<Item = &'a [u64]> {
        words.chunks(BLOCK as usize * width.max(1)).step_by(SAMPLED)
    }

    /// Returns the greatest difference between results of an approximation: relative and absolute.
    /// Twice the bound of the ISA, because each of the two keeps it.
    pub(crate) fn tolerance(&self) -> (f64, f64) {
        let name = self.name.split('.').next().unwrap_or("");
        let is = |ty: &str| self.name.ends_with(ty) || self.name.ends_with(&format!("{ty}x2"));
        let power = |exponent: f64| exponent.exp2();
        match name {
            _ if is(".bf16") => (power(-6.0), power(-7.0)),
            _ if is(".f16") => (power(-8.9), power(-9.987)),
            "sin" | "cos" => (0.0, power(-19.5)),
            "lg2" => (power(-21.0), power(-21.0)),
            "tanh" => (power(-10.0), 0.0),
            _ if is(".f64") => (power(-19.0), 0.0),
            _ => (power(-20.0), 0.0),
        }
    }
}

/// Returns a 64-bit digest of words (FNV-1a by words, with the bits mixed).
pub(crate) fn digest(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        let sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^ sum >> 29
    })
}

/// The class of a register that an operand is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    P,
    H,
    R,
    D,
}

/// An operand of a simple form: its register class and its values.
pub(crate) type Source = (Class, Kind);

/// Returns the body of an instruction with one result; `{d}` stands for the result, `{0}` to `{5}`
/// for the operands.
pub(crate) fn body(instruction: &str, result: Class, sources: &[Source]) -> String {
    let mut text = String::new();
    let mut instruction = instruction.to_owned();
    for (n, (class, _)) in sources.iter().enumerate() {
        let register = match class {
            Class::P => {
                text += &format!("setp.ne.u64 %p{n}, %x{n}, 0;\n");
                format!("%p{n}")
            }
            Class::H => {
                text += &format!("cvt.u16.u64 %h{n}, %x{n};\n");
                format!("%h{n}")
            }
            Class::R => {
                text += &format!("cvt.u32.u64 %r1{n}, %x{n};\n");
                format!("%r1{n}")
            }
            Class::D => format!("%x{n}"),
        };
        instruction = instruction.replace(&format!("{{{n}}}"), &register);
    }
    let (register, finish) = match result {
        Class::P => ("%p9", "selp.u64 %o0, 1, 0, %p9;"),
        Class::H => ("%h20", "cvt.u64.u16 %o0, %h20;"),
        Class::R => ("%r20", "cvt.u64.u32 %o0, %r20;"),
        Class::D => ("%o0", ""),
    };
    text + &instruction.replace("{d}", register) + "\n" + finish
}

/// The list of forms, while it is made.
#[derive(Default)]
pub(crate) struct List(pub(crate) Vec<Form>);

impl List {
    /// Adds `opcode d, sources...`.
    pub(crate) fn simple(&mut self, opcode: &str, result: Class, sources: &[Source]) {
        let places: Vec<String> = (0..sources.len()).map(|n| format!("{{{n}}}")).collect();
        self.text(opcode, &format!("{opcode} {{d}}, {};", places.join(", ")), result, sources);
    }

    /// Adds a form with the text of its instructions.
    pub(crate) fn text(
        &mut self,
        name: &str,
        instructions: &str,
        result: Class,
        sources: &[Source],
    ) {
        self.push(Form {
            name: name.to_owned(),
            kinds: sources.iter().map(|(_, kind)| *kind).collect(),
            results: 1,
            body: body(instructions, result, sources),
            rows: 4096,
            is_approximate: false,
        });
    }

    /// Adds a form with an own body.
    pub(crate) fn raw(&mut self, name: &str, kinds: &[Kind], results: usize, body: &str) {
        self.push(Form {
            name: name.to_owned(),
            kinds: kinds.to_vec(),
            results,
            body: body.to_owned(),
            rows: 4096,
            is_approximate: false,
        });
    }

    pub(crate) fn push(&mut self, form: Form) {
        if !self.0.iter().any(|other| other.name == form.name) {
            self.0.push(form);
        }
    }

    /// Marks the forms from `start` on as approximations with this number of rows.
    pub(crate) fn approximate_from(&mut self, start: usize, rows: u32) {
        for form in self.0.iter_mut().skip(start) {
            form.is_approximate = true;
            form.rows = form.rows.max(rows);
        }
    }

    /// Gives forms from `start` on, with one operand of 16 bits, all of its patterns.
    pub(crate) fn all_patterns_from(&mut self, start: usize) {
        for form in self.0.iter_mut().skip(start) {
            if matches!(form.kinds[..], [Kind::F16 | Kind::Bf16 | Kind::Row]) {
                form.kinds = vec![Kind::Row];
                form.rows = 1 << 16;
            }
        }
    }
}

/// Returns all forms.
pub(crate) fn forms() -> Vec<Form> {
    let mut list = List::default();
    floats::add(&mut list);
    floats::add_conversions(&mut list);
    integers::add(&mut list);
    other::add(&mut list);
    lanes::add(&mut list);
    products::add(&mut list);
    list.0
}

/// The first lines of a module.
pub(crate) const HEADER: &str = ".version 8.7\n.target sm_90\n.address_size 64\n";
