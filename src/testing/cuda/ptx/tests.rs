//! The interpreter, on small texts.

use super::functions::FUNCTIONS;
use super::*;

const BASE: u64 = 0x7F00_0000_0000;

/// Everything of a kernel but its instructions, of which the first leaves its only parameter, an address, in `%rd1`.
const HEAD: &str = "\
.version 8.1
.target sm_70
.address_size 64
	// A comment.

.visible .entry k(
	.param .align 8 .b8 k_param_0[8]
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<4>;
	.reg .b16 	%rs<6>;
	.reg .b32 	%r<6>;
	.reg .b64 	%rd<6>;
	.reg .f32 	%f<6>;
	.reg .f64 	%fd<6>;
	ld.param.u64 	%rd1, [k_param_0];
";

/// A kernel of these instructions, of which each has a line.
fn parse(body: &str) -> Result<Module, Error> {
    let lines = body.replace("; ", ";\n\t").replace(": ", ":\n\t");
    Module::parse(&format!("{HEAD}\t{lines}\n}}\n"))
}

/// Runs such a kernel on `words` at [`BASE`].
fn run_with(body: &str, words: &mut [u64], geometry: Geometry, order: Order) -> Result<(), Error> {
    let module = parse(body)?;
    let mut map = AddressMap::default();
    // SAFETY: the words are there until the map is dropped, and only the launch accesses them.
    unsafe { map.insert(BASE, words.as_mut_ptr().cast(), 8 * words.len() as u64) }.unwrap();
    module.kernel("k").unwrap().launch(&map, geometry, order, &[&BASE.to_ne_bytes()])
}

const ONE: Geometry = Geometry { blocks: 1, threads: 1 };

fn run(body: &str, words: &mut [u64]) -> Result<(), Error> {
    run_with(body, words, ONE, Order::Forward)
}

/// What instructions leave in the register `%{out}`. Two operands are in registers 2 and 3 of each kind, as far as they
/// fit.
#[track_caller]
fn result(out: &str, instructions: &str, operands: [u64; 2]) -> u64 {
    let (class, _) = out.split_at(out.len() - 1);
    let widened = match class {
        "p" => format!("selp.b64 %rd5, 1, 0, %{out};"),
        "rs" => format!("cvt.u32.u16 %r5, %{out}; cvt.u64.u32 %rd5, %r5;"),
        "r" => format!("cvt.u64.u32 %rd5, %{out};"),
        "f" => format!("mov.b32 %r5, %{out}; cvt.u64.u32 %rd5, %r5;"),
        "fd" => format!("mov.b64 %rd5, %{out};"),
        _ => format!("mov.u64 %rd5, %{out};"),
    };
    let body = format!(
        "ld.global.v2.u64 {{%rd2, %rd3}}, [%rd1]; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3; \
         cvt.u16.u64 %rs2, %rd2; cvt.u16.u64 %rs3, %rd3; mov.b32 %f2, %r2; mov.b32 %f3, %r3; \
         mov.b64 %fd2, %rd2; mov.b64 %fd3, %rd3; {instructions} {widened} st.global.u64 [%rd1+16], %rd5; ret;"
    );
    let mut words = [operands[0], operands[1], 0, 0];
    run(&body, &mut words).unwrap();
    words[2]
}

/// What an instruction with one operand, or with two, leaves, all in registers of one kind. Of narrow ones the bits
/// above must not matter.
#[track_caller]
fn of(class: &str, name: &str, operands: &[u64]) -> u64 {
    let high = match class {
        "rs" => 0xFFFF_FFFF_FFFF_0000,
        "r" | "f" => 0xFFFF_FFFF_0000_0000,
        _ => 0,
    };
    let sources = [format!("%{class}2"), format!("%{class}2, %{class}3")];
    let text = format!("{name} %{class}5, {};", sources[operands.len() - 1]);
    result(&format!("{class}5"), &text, [operands[0] | high, operands[operands.len() - 1] | high])
}

/// Whether a comparison holds.
#[track_caller]
fn holds(class: &str, name: &str, a: u64, b: u64) -> bool {
    result("p1", &format!("{name} %p1, %{class}2, %{class}3;"), [a, b]) == 1
}

/// Only instructions that the kernels consist of are known, in the order that the search needs.
#[test]
fn all_known_instructions_are_used() {
    let text = include_str!("../../../cuda/kernels.ptx");
    assert!(FUNCTIONS.is_sorted_by(|a, b| a.0 < b.0));
    let used: std::collections::HashSet<&str> = text.split_whitespace().collect();
    let unused: Vec<_> = FUNCTIONS.iter().map(|(name, _)| name).filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn integers() {
    let of_16 = |name, a, b| of("rs", name, &[a, b]);
    assert_eq!([of_16("add.s16", 0xFFFF, 3), of_16("mul.lo.s16", 0x0101, 0x0101)], [2, 0x0201]);
    assert_eq!([of_16("min.s16", 0x8000, 1), of_16("max.s16", 0x8000, 1)], [0x8000, 1]);
    assert_eq!([of_16("min.u16", 0x8000, 1), of_16("max.u16", 0x8000, 1)], [1, 0x8000]);
    assert_eq!(["and.b16", "or.b16", "xor.b16"].map(|name| of_16(name, 12, 10)), [8, 14, 6]);

    let of_32 = |name, a, b| of("r", name, &[a, b]);
    assert_eq!([of_32("add.s32", 0xFFFF_FFFF, 3), of_32("mul.lo.s32", 0x0001_0001, 0x0001_0001)], [2, 0x0002_0001]);
    assert_eq!([of_32("min.s32", 1 << 31, 1), of_32("max.s32", 1 << 31, 1)], [1 << 31, 1]);
    assert_eq!([of_32("min.u32", 1 << 31, 1), of_32("max.u32", 1 << 31, 1)], [1, 1 << 31]);
    assert_eq!(["and.b32", "or.b32", "xor.b32"].map(|name| of_32(name, 12, 10)), [8, 14, 6]);
    assert_eq!([of_32("div.u32", 1 << 31, 3), of_32("div.u32", 7, 0)], [0x2AAA_AAAA, 0xDEAD_BEEF]);
    assert_eq!([of("r", "neg.s32", &[1]), of("r", "abs.s32", &[1 << 31])], [0xFFFF_FFFF, 1 << 31]);
    assert_eq!(of("r", "abs.s32", &[0xFFFF_FFFB]), 5);
    assert_eq!(result("rd5", "mul.wide.u32 %rd5, %r2, %r3;", [0xFFFF_FFFF; 2]), 0xFFFF_FFFE_0000_0001);

    let of_64 = |name, a, b| of("rd", name, &[a, b]);
    assert_eq!([of_64("add.s64", u64::MAX, 3), of_64("sub.s64", 1, 2)], [2, u64::MAX]);
    assert_eq!(of_64("mul.lo.s64", u64::MAX, 5), u64::MAX - 4);
    assert_eq!([of_64("min.s64", 1 << 63, 1), of_64("max.s64", 1 << 63, 1)], [1 << 63, 1]);
    assert_eq!([of_64("min.u64", 1 << 63, 1), of_64("max.u64", 1 << 63, 1)], [1, 1 << 63]);
    assert_eq!(["and.b64", "or.b64", "xor.b64"].map(|name| of_64(name, 12, 10)), [8, 14, 6]);
    assert_eq!([of_64("div.u64", 1 << 63, 3), of_64("div.u64", 7, 0)], [0x2AAA_AAAA_AAAA_AAAA, 0xDEAD_BEEF_DEAD_BEEF]);
    assert_eq!([of("rd", "neg.s64", &[1]), of("rd", "abs.s64", &[u64::MAX - 4])], [u64::MAX, 5]);
    assert_eq!(result("rd5", "add.s64 %rd5, %rd2, -1;", [5, 0]), 4);
}

#[test]
fn shifts_and_bytes() {
    let by = |class: &str, name: &str, a, by: u32| {
        result(&format!("{class}5"), &format!("{name} %{class}5, %{class}2, {by};"), [a, 0])
    };
    assert_eq!([by("r", "shl.b32", 3, 31), by("r", "shl.b32", 3, 32)], [1 << 31, 0]);
    assert_eq!([by("r", "shr.u32", 3 << 30, 31), by("r", "shr.u32", 3 << 30, 32)], [1, 0]);
    assert_eq!([by("r", "shr.s32", 1 << 31, 30), by("r", "shr.s32", 1 << 31, 99)], [0xFFFF_FFFE, 0xFFFF_FFFF]);
    assert_eq!([by("rd", "shl.b64", 3, 63), by("rd", "shl.b64", 3, 64)], [1 << 63, 0]);
    assert_eq!([by("rd", "shr.u64", 3 << 62, 63), by("rd", "shr.u64", 3 << 62, 64)], [1, 0]);
    assert_eq!([by("rd", "shr.s64", 1 << 63, 62), by("rd", "shr.s64", 1 << 63, 99)], [u64::MAX - 1, u64::MAX]);

    let permuted = |selector| result("r5", &format!("prmt.b32 %r5, %r2, %r3, {selector};"), [0x8833_2211, 0x7766_5544]);
    assert_eq!([0x3210, 0x7654, 0x0C3B].map(permuted), [0x8833_2211, 0x7766_5544, 0x1100_88FF]);
    let inserted =
        |position, bits| result("r5", &format!("bfi.b32 %r5, %r2, %r3, {position}, {bits};"), [0xAB, 0xFFFF_FFFF]);
    assert_eq!([inserted(8, 8), inserted(28, 8)], [0xFFFF_ABFF, 0xBFFF_FFFF]);
    assert_eq!([inserted(8, 0), inserted(32, 8), inserted(0, 32)], [0xFFFF_FFFF, 0xFFFF_FFFF, 0xAB]);
}

#[test]
fn conversions_and_moves() {
    assert_eq!(result("r5", "cvt.u32.u16 %r5, %rs2;", [0x1_F234, 0]), 0xF234);
    assert_eq!(result("r5", "cvt.s32.s16 %r5, %rs2;", [0xF234, 0]), 0xFFFF_F234);
    assert_eq!(result("rs5", "cvt.s16.s8 %rs5, %rs2;", [0x1280, 0]), 0xFF80);
    assert_eq!(result("r5", "cvt.s32.s8 %r5, %rs2;", [0x1280, 0]), 0xFFFF_FF80);
    assert_eq!(result("rs5", "cvt.u16.u32 %rs5, %r2;", [0x1_F234, 0]), 0xF234);
    let exchanged = "mov.b32 {%rs4, %rs5}, %r2; mov.b32 %r5, {%rs5, %rs4};";
    assert_eq!(result("r5", exchanged, [0x1234_5678, 0]), 0x5678_1234);
    assert_eq!(result("r5", "mov.u32 %r5, -1;", [0, 0]), 0xFFFF_FFFF);
    assert_eq!(result("rs5", "mov.u16 %rs5, -1;", [0, 0]), 0xFFFF);
    assert_eq!(result("rd5", "mov.u64 %rd5, 18446744073709551615;", [0, 0]), u64::MAX);
    assert_eq!(result("rd5", "cvta.to.global.u64 %rd5, %rd2;", [7, 0]), 7);
    // The bits of a NaN that is only moved remain.
    assert_eq!(result("f2", "", [0xFF80_0001, 0]), 0xFF80_0001);
    assert_eq!(result("fd2", "", [0x7FF0_0000_0000_0001, 0]), 0x7FF0_0000_0000_0001);
}

#[test]
fn floats() {
    let bits = |value: f32| u64::from(value.to_bits());
    let of_f32 = |name, a, b| of("f", name, &[a, b]);
    let big = (1 << 24) as f32;
    // Half-way between two numbers: to the even one. Subnormal numbers are not flushed.
    assert_eq!(of_f32("add.rn.f32", bits(big), bits(1.0)), bits(big));
    assert_eq!(of_f32("add.rn.f32", bits(big + 2.0), bits(1.0)), bits(big + 4.0));
    assert_eq!(
        [of_f32("sub.rn.f32", 0x80_0000, 1), of_f32("mul.rn.f32", 0x80_0000, bits(0.5))],
        [0x7F_FFFF, 0x40_0000]
    );
    assert_eq!(of_f32("div.rn.f32", bits(1.0), bits(3.0)), 0x3EAA_AAAB);
    assert_eq!(of_f32("div.rn.f32", bits(-1.0), 0), bits(f32::NEG_INFINITY));
    assert_eq!(of_f32("mul.rn.f32", bits(f32::MAX), bits(2.0)), bits(f32::INFINITY));
    let infinite = [bits(f32::INFINITY), bits(f32::NEG_INFINITY)];
    for [a, b] in [[0xFF80_0001, 0], [0, 0x7FC0_1234], [0xFFFF_FFFF; 2], infinite] {
        assert_eq!(of_f32("add.rn.f32", a, b), 0x7FFF_FFFF, "{a:#x} {b:#x}");
    }

    let bits_64 = |value: f64| value.to_bits();
    let of_f64 = |name, a, b| of("fd", name, &[a, b]);
    let huge = (1u64 << 53) as f64;
    assert_eq!(of_f64("add.rn.f64", bits_64(huge), bits_64(1.0)), bits_64(huge));
    assert_eq!(of_f64("add.rn.f64", bits_64(huge + 2.0), bits_64(1.0)), bits_64(huge + 4.0));
    assert_eq!(of_f64("sub.rn.f64", 1 << 52, 1), (1 << 52) - 1);
    assert_eq!(of_f64("mul.rn.f64", 2, bits_64(0.5)), 1);
    assert_eq!(of_f64("div.rn.f64", bits_64(1.0), bits_64(3.0)), bits_64(1.0 / 3.0));
    assert_eq!(of_f64("add.rn.f64", 0xFFF0_0000_0000_0001, 0), 0xFFF8_0000_0000_0001);
    assert_eq!(of_f64("div.rn.f64", 0, 0), 0xFFF8_0000_0000_0000);

    let from_half = |half| result("f5", "cvt.f32.f16 %f5, %rs2;", [half, 0]);
    let smallest = 1.0 / (1 << 24) as f32;
    assert_eq!([0x3C00, 0x8001, 0x7C01].map(from_half), [bits(1.0), bits(-smallest), 0x7FFF_FFFF]);
    let to_half = |single| result("rs5", "cvt.rn.f16.f32 %rs5, %f2;", [single, 0]);
    assert_eq!([2049.0, 2051.0, 65520.0, -1.5 * smallest].map(|x| to_half(bits(x))), [0x6800, 0x6802, 0x7C00, 0x8002]);
    assert_eq!(to_half(0xFFC0_0000), 0x7FFF);
    let to_single = |value| result("f5", "cvt.rn.f32.u64 %f5, %rd2;", [value, 0]);
    assert_eq!([(1 << 24) + 1, u64::MAX].map(to_single), [bits(big), bits(2f32.powi(64))]);
    assert_eq!(result("fd5", "cvt.rn.f64.u64 %fd5, %rd2;", [(1 << 53) + 1, 0]), bits_64(huge));
}

#[test]
fn comparisons_and_predicates() {
    let minus = u64::MAX;
    for (class, width) in [("rs", 16), ("r", 32), ("rd", 64)] {
        let signed = |name: &str, a, b| holds(class, &format!("setp.{name}.s{width}"), a, b);
        assert!(signed("lt", minus, 0) && !signed("lt", 0, 0) && !signed("lt", 0, minus), "{width}");
        assert!(signed("gt", 0, minus) && !signed("gt", 0, 0) && !signed("gt", minus, 0), "{width}");
        assert!(signed("ne", 1, 0) && !signed("ne", minus, minus), "{width}");
        let less = |a, b| holds(class, &format!("setp.lt.u{width}"), a, b);
        assert!(less(0, minus) && !less(0, 0) && !less(minus, 0), "{width}");
    }
    // The bits above do not matter.
    assert!(!holds("rs", "setp.ne.s16", 1, 0x1_0001) && !holds("r", "setp.ne.s32", 1 << 32, 0));
    assert!(holds("r", "setp.eq.s32", 1 << 32, 0) && !holds("r", "setp.eq.s32", 1, 0));
    assert!(holds("r", "setp.eq.b32", 1 << 32, 0) && !holds("r", "setp.eq.b32", 1, 0));
    assert!(holds("rd", "setp.eq.s64", 7, 7) && !holds("rd", "setp.eq.s64", 1 << 32, 0));
    assert!(holds("rs", "setp.gt.u16", 0x8000, 0) && !holds("rs", "setp.gt.u16", 5, 5));
    assert!(holds("rd", "setp.gt.u64", minus, 0) && !holds("rd", "setp.gt.u64", 5, 5));
    assert!(
        holds("rd", "setp.ge.u64", minus, 0) && holds("rd", "setp.ge.u64", 5, 5) && !holds("rd", "setp.ge.u64", 4, 5)
    );
    assert!(holds("f", "setp.nan.f32", 0x7F80_0001, 0) && holds("f", "setp.nan.f32", 0, 0xFFC0_0000));
    assert!(!holds("f", "setp.nan.f32", 0x7F80_0000, 0));
    assert!(holds("fd", "setp.nan.f64", 0x7FF8 << 48, 0) && holds("fd", "setp.nan.f64", 0, 0xFFF8 << 48));
    assert!(!holds("fd", "setp.nan.f64", 0x7FF0 << 48, 0));

    for [a, b] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        let of =
            |text: &str| result("p3", &format!("setp.ne.s32 %p1, %r2, 0; setp.ne.s32 %p2, %r3, 0; {text};"), [a, b]);
        assert_eq!([of("and.pred %p3, %p1, %p2"), of("xor.pred %p3, %p1, %p2")], [a & b, a ^ b]);
        assert_eq!([of("not.pred %p3, %p1"), of("mov.pred %p3, %p1"), of("mov.pred %p3, -1")], [1 - a, a, 1]);
    }
    let guarded = |guard: &str| {
        result("rd5", &format!("setp.eq.s64 %p1, %rd2, 5; mov.u64 %rd5, 1; @{guard} mov.u64 %rd5, 2;"), [5, 0])
    };
    assert_eq!([guarded("%p1"), guarded("!%p1")], [2, 1]);
    for (name, class) in
        [("selp.b16", "rs"), ("selp.u16", "rs"), ("selp.b32", "r"), ("selp.u32", "r"), ("selp.b64", "rd")]
    {
        let text = format!("setp.eq.s64 %p1, %rd3, 5; {name} %{class}5, %{class}2, -1, %p1;");
        let all = result(&format!("{class}5"), &text, [7, 6]);
        assert_eq!((result(&format!("{class}5"), &text, [7, 5]), all.trailing_ones()), (7, name[6..].parse().unwrap()));
    }
}

/// The sum of 1 to 10.
#[test]
fn branches() {
    let text = "mov.u64 %rd5, 0; $L__1: .pragma \"nounroll\"; add.s64 %rd5, %rd5, %rd2; add.s64 %rd2, %rd2, -1; \
                setp.ne.s64 %p1, %rd2, 0; @%p1 bra $L__1; bra.uni $L__2; mov.u64 %rd5, 0; $L__2: ";
    assert_eq!(result("rd5", text, [10, 0]), 55);
    let error = run("$L__1: bra $L__1;", &mut [0]).unwrap_err().to_string();
    assert!(
        error.starts_with("k, block 0, thread 0, line ")
            && error.ends_with("bra $L__1; is reached after 4194304 instructions"),
        "{error}"
    );
}

/// Leaves the number of the thread in `%rd3`, and the address of its word in `%rd4`.
const EACH_THREAD: &str = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mul.wide.u32 %rd2, %r1, %r2; \
                           mov.u32 %r3, %tid.x; cvt.u64.u32 %rd3, %r3; add.s64 %rd3, %rd3, %rd2; \
                           shl.b64 %rd4, %rd3, 3; add.s64 %rd4, %rd4, %rd1; ";

#[test]
fn every_thread_runs_once_and_knows_which_it_is() {
    for order in [Order::Forward, Order::Backward] {
        let mut words = [0; 12];
        let body = format!(
            "{EACH_THREAD}ld.global.u64 %rd5, [%rd4]; add.s64 %rd5, %rd5, %rd3; mov.u32 %r4, %nctaid.x; \
             mul.wide.u32 %rd2, %r4, 100; add.s64 %rd5, %rd5, %rd2; st.global.u64 [%rd4], %rd5; ret;"
        );
        run_with(&body, &mut words, Geometry { blocks: 3, threads: 4 }, order).unwrap();
        assert_eq!(words, std::array::from_fn(|i| 300 + i as u64), "{order:?}");
        // The word that all write is that of the last one.
        run_with(
            &format!("{EACH_THREAD}st.global.u64 [%rd1], %rd3; ret;"),
            &mut words,
            Geometry { blocks: 3, threads: 4 },
            order,
        )
        .unwrap();
        assert_eq!(words[0], if order == Order::Forward { 11 } else { 0 });
    }
    for geometry in
        [Geometry { blocks: 0, threads: 1 }, Geometry { blocks: 1, threads: 0 }, Geometry { blocks: 1, threads: 65 }]
    {
        let error = run_with("ret;", &mut [0], geometry, Order::Forward).unwrap_err().to_string();
        assert!(error.ends_with(", of at most 64"), "{error}");
    }
    let module = parse("ret;").unwrap();
    let error = module.kernel("k").unwrap().launch(&AddressMap::default(), ONE, Order::Forward, &[&[0; 4]]);
    assert_eq!(error.unwrap_err().to_string(), "k: parameters of [4] bytes, not [8]");
    assert_eq!((module.version, module.target.as_str()), ((8, 1), "sm_70"));
}

#[test]
fn loads_and_stores() {
    let mut words = [0x8877_6655_4433_2211, 0xFFEE_DDCC_BBAA_9988, 0, 0];
    run(
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; st.global.v4.u32 [%rd1+16], {%r4, %r3, %r2, %r1}; ret;",
        &mut words,
    )
    .unwrap();
    assert_eq!(words[2..], [0xBBAA_9988_FFEE_DDCC, 0x4433_2211_8877_6655]);
    run("ld.global.v2.u64 {%rd2, %rd3}, [%rd1]; st.global.v2.u64 [%rd1+16], {%rd3, %rd2}; ret;", &mut words).unwrap();
    assert_eq!(words[2..], [words[1], words[0]]);
    let load = |text: &str| {
        let mut words = words;
        run(&format!("{text} st.global.u64 [%rd1+24], %rd5; ret;"), &mut words).unwrap();
        words[3]
    };
    assert_eq!(load("ld.global.u8 %rs1, [%rd1+7]; cvt.u32.u16 %r1, %rs1; cvt.u64.u32 %rd5, %r1;"), 0x88);
    assert_eq!(load("ld.global.s8 %rs1, [%rd1+7]; cvt.u32.u16 %r1, %rs1; cvt.u64.u32 %rd5, %r1;"), 0xFF88);
    assert_eq!(load("ld.global.s8 %r1, [%rd1+6]; cvt.u64.u32 %rd5, %r1;"), 0x77);
    assert_eq!(load("ld.global.u16 %rs1, [%rd1+2]; cvt.u32.u16 %r1, %rs1; cvt.u64.u32 %rd5, %r1;"), 0x4433);
    assert_eq!(load("ld.global.f32 %f1, [%rd1+4]; mov.b32 %r1, %f1; cvt.u64.u32 %rd5, %r1;"), 0x8877_6655);
    assert_eq!(load("ld.global.f64 %fd1, [%rd1+8]; mov.b64 %rd5, %fd1;"), words[1]);
    assert_eq!(load("add.s64 %rd2, %rd1, 16; ld.global.u64 %rd5, [%rd2+-8];"), words[1]);
    // What is beside a store remains, and only the lowest bits of the register are stored.
    let mut word = [u64::MAX];
    run("mov.u16 %rs1, 4660; st.global.u8 [%rd1+1], %rs1; st.global.u16 [%rd1+4], %rs1; ret;", &mut word).unwrap();
    assert_eq!(word[0], 0xFFFF_1234_FFFF_34FF);
}

#[test]
fn wrong_accesses_are_found() {
    let failure = |text: &str| run(&format!("{text} ret;"), &mut [0; 4]).unwrap_err().to_string();
    let start = |text: &str| format!("k, block 0, thread 0, line 18: {text} ");
    for (text, what) in [
        ("ld.global.u32 %r1, [%rd1+2];", "reads 4 bytes at 0x7f0000000002, which is not a multiple of 4"),
        ("st.global.u64 [%rd1+4], %rd1;", "writes 8 bytes at 0x7f0000000004, which is not a multiple of 8"),
        (
            "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1+8];",
            "reads 16 bytes at 0x7f0000000008, which is not a multiple of 16",
        ),
        ("ld.global.u8 %rs1, [%rd1+-1];", "reads 1 bytes at 0x7effffffffff, outside of the device's memory"),
        (
            "st.global.u8 [%rd1+32], %rs1;",
            "writes 1 bytes at 0x7f0000000020, outside of the device's memory; \
             the next below are 32 bytes at 0x7f0000000000",
        ),
        ("ld.param.u64 %rd2, [k_param_0+8];", "reads 8 bytes at 0x8 of 8 bytes of parameters"),
        ("ld.param.u32 %r2, [k_param_0+2];", "reads 4 bytes at 0x2 of 8 bytes of parameters"),
    ] {
        assert_eq!(failure(text), format!("{}{what}", start(text)));
    }
    // A vector that is outside in part, and memory that is no longer there.
    let mut memory = [0u64; 3];
    let mut map = AddressMap::default();
    let host = memory.as_mut_ptr().cast();
    // SAFETY: the memory is there as long as the map.
    unsafe { map.insert(BASE, host, 24) }.unwrap();
    let module = parse("ld.global.v2.u64 {%rd2, %rd3}, [%rd1+16]; ret;").unwrap();
    let launch =
        |map: &AddressMap| module.kernel("k").unwrap().launch(map, ONE, Order::Forward, &[&BASE.to_ne_bytes()]);
    assert!(launch(&map).unwrap_err().to_string().contains("16 bytes at 0x7f0000000010, outside"));
    // SAFETY: as above; nothing is launched with what overlaps.
    unsafe {
        assert!(map.insert(BASE + 8, host, 8).is_err() && map.insert(BASE - 8, host, 9).is_err());
        assert!(map.insert(BASE, host, 0).is_err() && map.insert(u64::MAX, host, 2).is_err());
        map.insert(BASE - 8, host, 8).unwrap();
        map.insert(BASE + 24, host, 8).unwrap();
    }
    assert!(map.remove(BASE) && !map.remove(BASE));
    assert!(launch(&map).unwrap_err().to_string().contains("outside"));
}

#[test]
fn what_is_unknown_is_an_error_that_names_the_line() {
    for (text, what) in [
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", "an unknown instruction"),
        ("add.f32 %f1, %f2, %f3;", "an unknown instruction"),
        ("add.ftz.f32 %f1, %f2, %f3;", "an unknown instruction"),
        ("bar.sync 0;", "an unknown instruction"),
        ("exit;", "an unknown instruction"),
        ("add.s32 %r1, %r2;", "another number of operands"),
        ("add.s32 %r6, %r2, %r3;", "writes to what is no register"),
        ("add.s32 %r1, %r2, %r6;", "an unknown operand"),
        ("add.s32 %r1, %r2, %ntid.y;", "an unknown operand"),
        ("ld.global.nc.u32 %r1, [%rd1];", "an unknown access to memory"),
        ("ld.shared.u32 %r1, [%rd1];", "an unknown access to memory"),
        ("st.param.u32 [%rd1], %r1;", "an unknown access to memory"),
        ("ld.global.b128 %r1, [%rd1];", "an unknown access to memory"),
        ("ld.global.v2.u32 %r1, [%rd1];", "another number of registers"),
        ("ld.global.u32 %r1, %rd1;", "no address"),
        ("ld.global.u32 %r1, [%rd1+x];", "an unknown offset"),
        (".shared .align 4 .b8 s[4];", "an unknown instruction"),
        (".reg .b128 %q<2>;", "registers of an unknown type"),
        (".local .align 8", "a directive or an instruction that is unknown"),
        ("bra $L__9;", "leads nowhere"),
    ] {
        let error = parse(&format!("{text}\n\tret;")).unwrap_err().to_string();
        assert_eq!(error, format!("line 18: {text}: {what}"));
    }
    assert_eq!(parse("mov.u64 %rd1, 0;").unwrap_err().to_string(), "k: does not end with ret");
    assert_eq!(
        Module::parse(".global .align 4 .u32 x = 8;").unwrap_err().to_string(),
        "line 1: .global .align 4 .u32 x = 8;: unknown"
    );
    assert_eq!(Module::parse(".visible .entry k(\n").unwrap_err().to_string(), "k: does not end");
}
