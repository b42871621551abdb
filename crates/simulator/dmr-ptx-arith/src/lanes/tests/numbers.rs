//! The values of elements, and rounding to `f16`, over all halves.

use crate::lanes::element::{Element, nearest_half};

#[test]
fn every_half_has_the_value_that_its_fields_say() {
    for bits in 0..=u16::MAX {
        let exponent = i32::from(bits >> 10 & 31);
        let mantissa = f64::from(bits & 1023);
        let size = match exponent {
            31 if mantissa == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            0 => mantissa / 1024.0 * 2_f64.powi(-14),
            _ => (1.0 + mantissa / 1024.0) * 2_f64.powi(exponent - 15),
        };
        let expected = if bits >> 15 == 1 { -size } else { size };
        let value = f64::from(Element::F16.format().value(u32::from(bits)));
        assert!(
            value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
            "{bits:04x}: {value}"
        );
    }
}

fn half(bits: u32) -> f64 {
    f64::from(Element::F16.format().value(bits))
}

#[test]
fn every_half_rounds_to_itself_and_the_middle_of_two_to_the_even_one() {
    for bits in 0..0x7c00 {
        let value = half(bits);
        // Above the largest half is the power of two that would follow it.
        let above = if bits == 0x7bff { 65536.0 } else { half(bits + 1) };
        let even = f64::from(if bits % 2 == 0 { value } else { above } as f32);
        let middle = f64::midpoint(value, above);
        let rounded = |value| match nearest_half(value) {
            f32::INFINITY => 65536.0,
            rounded => f64::from(rounded),
        };
        assert_eq!(rounded(value), value);
        assert_eq!(rounded(middle), even, "{bits:04x}");
        assert_eq!(rounded(middle.next_down()), value, "{bits:04x}");
        assert_eq!(rounded(middle.next_up()), above, "{bits:04x}");
        assert_eq!(nearest_half(-middle), -nearest_half(middle), "{bits:04x}");
        assert_eq!(Element::F16.round(value as f32), u64::from(bits));
        assert_eq!(Element::F16.round(-value as f32), u64::from(0x8000 | bits));
    }
    assert_eq!(Element::F16.round(f32::INFINITY), 0x7c00);
    assert_eq!(Element::F16.round(65520.0), 0x7c00);
    assert_eq!(Element::F16.round(-1e30), 0xfc00);
    assert_eq!(Element::F16.round(f32::NAN), 0x7fff);
    assert!(nearest_half(-1e-30).is_sign_negative());
}

#[test]
fn small_floats_have_the_values_of_their_tables() {
    let tables: [(Element, &[(u32, f64)]); 4] = [
        (
            Element::E4m3,
            &[
                (0, 0.0),
                (1, 0.001953125),
                (7, 0.013671875),
                (8, 0.015625),
                (0x38, 1.0),
                (0xb9, -1.125),
                (0x7e, 448.0),
            ],
        ),
        (
            Element::E5m2,
            &[
                (1, 0.0000152587890625),
                (4, 0.00006103515625),
                (0x3c, 1.0),
                (0xbd, -1.25),
                (0x7b, 57344.0),
                (0xfc, f64::NEG_INFINITY),
            ],
        ),
        (
            Element::Bf16,
            &[(0x3f80, 1.0), (0xc040, -3.0), (0x7f80, f64::INFINITY), (0x3f81, 1.0078125)],
        ),
        (
            Element::Tf32,
            &[
                (0x3f80_0000, 1.0),
                (0x3f80_1fff, 1.0),
                (0x3f80_2000, 1.0009765625),
                (0xc040_1234, -3.0),
            ],
        ),
    ];
    for (element, table) in tables {
        for &(bits, value) in table {
            assert_eq!(f64::from(element.format().value(bits)), value, "{element:?} {bits:x}");
        }
    }
    assert!(
        Element::E4m3.format().value(0x7f).is_nan() && Element::E4m3.format().value(0xff).is_nan()
    );
    assert!(
        Element::E5m2.format().value(0x7d).is_nan() && !Element::E4m3.format().value(0x7c).is_nan()
    );
}

#[test]
fn integers_are_extended_by_their_sign() {
    assert_eq!(Element::S4.to_i64(8), -8);
    assert_eq!(Element::U4.to_i64(8), 8);
    assert_eq!(Element::S8.to_i64(0xff), -1);
    assert_eq!(Element::U8.to_i64(0xff), 255);
    assert_eq!(Element::S32.to_i64(0x8000_0000), -0x8000_0000);
    assert_eq!(Element::B1.to_i64(1), 1);
}
