//! Forms of instructions between lanes: 32 rows are a warp.

use super::integers::of;
use super::operands::Kind;
use super::{Class, List};

pub(crate) fn add(list: &mut List) {
    shuffles(list);
    votes(list);
    meetings(list);
    moves(list);
}

fn shuffles(list: &mut List) {
    let word = of("b32");
    for mode in ["up", "down", "bfly", "idx"] {
        let name = format!("shfl.sync.{mode}.b32");
        let body = |b: &str, c: &str| {
            format!(
                "cvt.u32.u64 %r10, %x0;\ncvt.u32.u64 %r11, %x1;\ncvt.u32.u64 %r12, %x2;\n\
                 shfl.sync.{mode}.b32 %r20|%p8, %r10, {b}, {c}, 0xffffffff;\n\
                 cvt.u64.u32 %o0, %r20;\nselp.u64 %o1, 1, 0, %p8;"
            )
        };
        list.raw(&name, &[word.1; 3], 2, &body("%r11", "%r12"));
        let small = "and.b32 %r12, %r12, 0x1f1f;\n";
        let text = body("%r11", "%r12").replacen("shfl", &format!("{small}shfl"), 1);
        list.raw(&format!("{name} (c below 0x2000)"), &[word.1, Kind::Amount, word.1], 2, &text);
        for amount in [0, 1, 5, 16, 31, 33] {
            for c in ["0", "31", "0x1c1f", "0x1000", "0x181f", "0x0707"] {
                list.raw(
                    &format!("{name} ({amount}, {c})"),
                    &[word.1; 3],
                    2,
                    &body(&amount.to_string(), c),
                );
            }
        }
    }
    for form in
        list.0.iter_mut().filter(|form| form.name.ends_with(')') && form.name.starts_with("shfl"))
    {
        if !form.name.contains("below") {
            form.rows = 256;
        }
    }
}

fn votes(list: &mut List) {
    let mask = "0xffffffff";
    for (poll, ty) in [("all", "pred"), ("any", "pred"), ("uni", "pred"), ("ballot", "b32")] {
        for not in ["", "!"] {
            let (d, finish) = if ty == "pred" {
                ("%p8", "selp.u64 %o0, 1, 0, %p8;")
            } else {
                ("%r20", "cvt.u64.u32 %o0, %r20;")
            };
            list.raw(
                &format!("vote.sync.{poll}.{ty} ({not}p)"),
                &[Kind::Int(64), Kind::Int(64)],
                1,
                // Mostly equal within a warp.
                &format!(
                    "shr.u32 %r40, %r3, 5;\nand.b32 %r41, %r40, 3;\nsetp.eq.u32 %p5, %r41, 0;\nsetp.eq.u32 %p6, %r41, 1;\n\
                     and.b64 %t5, %x0, 1;\nsetp.ne.u64 %p7, %t5, 0;\nor.pred %p7, %p7, %p5;\nnot.pred %p6, %p6;\n\
                     and.pred %p7, %p7, %p6;\nvote.sync.{poll}.{ty} {d}, {not}%p7, {mask};\n{finish}"
                ),
            );
        }
    }
}

/// Instructions that only some of the lanes execute, by their member masks.
fn meetings(list: &mut List) {
    let start = "mov.b64 %o0, 77;\nmov.b64 %o1, 77;\nmov.u32 %r20, 99;\ncvt.u32.u64 %r10, %x0;\nmov.u32 %r4, %laneid;\nsetp.ne.u32 %p8, 0, 0;\n";
    let members = |mask: &str, text: &str| {
        format!(
            "{start}mov.u32 %r5, {mask};\nshr.u32 %r6, %r5, %r4;\nand.b32 %r6, %r6, 1;\nsetp.eq.u32 %p5, %r6, 0;\n@%p5 bra done;\n\
             {text}\ncvt.u64.u32 %o0, %r20;\nselp.u64 %o1, 1, 0, %p8;\ndone:"
        )
    };
    for mask in ["0xffffffff", "0xaaaaaaaa", "0x00010000", "0x7f0000f1"] {
        let mut add = |name: &str, kind: Kind, text: &str| {
            list.raw(&format!("{name} ({mask})"), &[kind], 2, &members(mask, text));
        };
        add("elect.sync", Kind::Int(32), "elect.sync %r20|%p8, %r5;");
        add("activemask.b32", Kind::Int(32), "activemask.b32 %r20;");
        add("match.any.sync.b32", Kind::Few, "match.any.sync.b32 %r20, %r10, %r5;");
        add("match.any.sync.b64", Kind::Few, "match.any.sync.b64 %r20, %x0, %r5;");
        let few = "shr.u32 %r7, %r3, 5;\nand.b32 %r7, %r7, 1;\nsetp.eq.u32 %p6, %r7, 1;\n@%p6 mov.b64 %x0, 5;\ncvt.u32.u64 %r10, %x0;\n";
        add(
            "match.all.sync.b32",
            Kind::Few,
            &format!("{few}match.all.sync.b32 %r20|%p8, %r10, %r5;"),
        );
        add(
            "match.all.sync.b64",
            Kind::Few,
            &format!("{few}match.all.sync.b64 %r20|%p8, %x0, %r5;"),
        );
        for (operation, ty) in [
            ("add", "u32"),
            ("add", "s32"),
            ("min", "u32"),
            ("min", "s32"),
            ("max", "u32"),
            ("max", "s32"),
            ("and", "b32"),
            ("or", "b32"),
            ("xor", "b32"),
        ] {
            let opcode = format!("redux.sync.{operation}.{ty}");
            add(&opcode, Kind::Int(32), &format!("{opcode} %r20, %r10, %r5;"));
        }
        for last in ["min", "max", "min.abs", "max.NaN", "max.abs.NaN"] {
            let opcode = format!("redux.sync.{last}.f32");
            add(&opcode, Kind::F32, &format!("{opcode} %r20, %r10, %r5;"));
        }
        add(
            "vote.sync.ballot.b32",
            Kind::Int(32),
            "and.b32 %r10, %r10, 1;\nsetp.ne.u32 %p7, %r10, 0;\nvote.sync.ballot.b32 %r20, %p7, %r5;",
        );
        add(
            "shfl.sync.idx.b32",
            Kind::Int(32),
            "bfind.u32 %r8, %r5;\nshfl.sync.idx.b32 %r20|%p8, %r10, %r8, 31, %r5;",
        );
    }
    for form in
        list.0.iter_mut().filter(|form| form.name.ends_with(')') && form.body.contains("bra done"))
    {
        form.rows = 1024;
    }
    for operation in ["popc.u32", "and.pred", "or.pred"] {
        let (d, finish) = if operation == "popc.u32" {
            ("%r20", "cvt.u64.u32 %o0, %r20;")
        } else {
            ("%p8", "selp.u64 %o0, 1, 0, %p8;")
        };
        list.raw(
            &format!("barrier.cta.red.{operation}"),
            &[Kind::Int(32)],
            1,
            &format!("setp.gt.s64 %p7, %x0, 100;\nbarrier.cta.red.{operation} {d}, 3, 128, %p7;\n{finish}"),
        );
    }
}

/// The words of the operands into the shared memory of the warp: 16 bytes a lane at `%r31`, the
/// warp's at `%r30`.
const TO_SHARED: &str = ".shared .align 128 .b8 tile[2048];\nmov.u32 %r4, %laneid;\nshr.u32 %r5, %r2, 5;\nshl.b32 %r5, %r5, 9;\n\
    mov.u32 %r30, tile;\nadd.u32 %r30, %r30, %r5;\nshl.b32 %r6, %r4, 4;\nadd.u32 %r31, %r30, %r6;\n\
    st.shared.v2.b64 [%r31], {%x0, %x1};\nbar.warp.sync 0xffffffff;\n";

fn moves(list: &mut List) {
    let kinds = [Kind::Int(64), Kind::Int(64)];
    for trans in ["", ".trans"] {
        for (count, registers) in
            [("x1", "{%r20}"), ("x2", "{%r20, %r21}"), ("x4", "{%r20, %r21, %r22, %r23}")]
        {
            let clear = "mov.u32 %r20, 0;\nmov.u32 %r21, 0;\nmov.u32 %r22, 0;\nmov.u32 %r23, 0;\n";
            let pack = "mov.b64 %o0, {%r20, %r21};\nmov.b64 %o1, {%r22, %r23};";
            // Rows in another order than the lanes'.
            let rows = "xor.b32 %r7, %r4, 5;\nshl.b32 %r7, %r7, 4;\nadd.u32 %r32, %r30, %r7;\n";
            list.raw(
                &format!("ldmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16"),
                &kinds,
                2,
                &format!("{TO_SHARED}{rows}{clear}ldmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16 {registers}, [%r32];\n{pack}"),
            );
            list.raw(
                &format!("stmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16"),
                &kinds,
                2,
                &format!(
                    "{TO_SHARED}{rows}mov.b64 {{%r20, %r21}}, %x1;\nmov.b64 {{%r22, %r23}}, %x0;\n\
                     stmatrix.sync.aligned.m8n8.{count}{trans}.shared.b16 [%r32], {registers};\n\
                     bar.warp.sync 0xffffffff;\nld.shared.v2.b64 {{%o0, %o1}}, [%r31];"
                ),
            );
        }
    }
    list.simple("movmatrix.sync.aligned.m8n8.trans.b16", Class::R, &[of("b32")]);
}
