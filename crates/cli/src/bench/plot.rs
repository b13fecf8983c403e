//! Plots like the papers', drawn as SVG by hand: bars with intervals, lines over a number, stacked shares.

use super::case::System;
use super::figures::EVERYBODY;
use super::html::escape;
use super::report::{Plot, Row, Shape};
use crate::demo::grouped;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 52.0;
/// The bound is drawn as a line beyond the scale where it is so many times as high as anything else.
const DWARFS: f64 = 2.5;
/// Told apart by people who see colours differently, too (Okabe and Ito).
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#b8a800"];

struct Canvas {
    out: String,
    top: f64,
}

impl Canvas {
    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value / self.top).clamp(0.0, 1.05) * (HEIGHT - BOTTOM - TOP)
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str, colour: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\" stroke=\"{colour}\"/>"
        ));
    }

    /// A bar that says `value` where a pointer rests on it.
    fn bar(&mut self, (x, width): (f64, f64), (from, to): (f64, f64), colour: &str, value: &str) {
        let (low, high) = (self.y(from), self.y(to));
        let height = (low - high).max(0.0);
        let value = escape(value);
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
             class=\"value\"><title>{value}</title></rect>"
        ));
    }

    /// A dashed line at the top of the plot for a value beyond its scale.
    fn beyond(&mut self, (from, to): (f64, f64), name: &str, value: f64, unit: &str) {
        let (y, said) = (TOP - 2.0, escape(&format!("{name}: {} {unit}", grouped(value))));
        self.add(format_args!(
            "<line x1=\"{from:.1}\" y1=\"{y}\" x2=\"{to:.1}\" y2=\"{y}\" class=\"axis\" stroke=\"#333\" \
             stroke-dasharray=\"5 4\" stroke-width=\"1.5\"><title>{said}</title></line>"
        ));
        self.text((from + to) / 2.0, y - 3.0, "middle", &format!("\u{2191} {name} {}", short(value)));
    }

    fn whisker(&mut self, x: f64, ends: (f64, f64)) {
        let (low, high) = (self.y(ends.0), self.y(ends.1));
        self.line((x, low), (x, high), "axis", "#333");
        for y in [low, high] {
            self.line((x - 3.0, y), (x + 3.0, y), "axis", "#333");
        }
    }

    fn legend(&mut self, names: &[String]) {
        for (at, name) in names.iter().enumerate() {
            let y = TOP + at as f64 * 19.0;
            let colour = colour(name, at);
            let x = WIDTH - RIGHT + 14.0;
            self.add(format_args!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"));
            self.text(x + 18.0, y + 11.0, "start", name);
        }
    }
}

/// 1, 2 or 5 times a power of ten, at least `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = 10f64.powf(value.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0].into_iter().map(|n| n * unit).find(|n| *n >= value).unwrap_or(10.0 * unit)
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        v if v >= 1e3 => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a pointer that rests on a value is told.
fn told(row: &Row, plot: &Plot, name: &str, y: &str) -> String {
    let value = row.values.get(y).copied().unwrap_or(0.0);
    let show = |value: f64| if value.abs() >= 1000.0 { grouped(value) } else { trimmed(value) };
    let spread = row.intervals.get(y).filter(|ends| ends.0 != ends.1);
    let spread = spread.map_or_else(String::new, |(low, high)| format!(" ({} to {})", show(*low), show(*high)));
    let at = row.key(plot.x);
    let at = if at.is_empty() { at } else { format!(", {} {at}", plot.x.replace('_', " ")) };
    format!("{name}{at}: {}{spread} {}", show(value), plot.unit)
}

/// What a row is a part of: its system, and its thread model where that is what is compared.
fn series(row: &Row) -> String {
    match row.keys.contains_key("model") {
        true => format!("{}, {}", row.key("system"), row.key("model")),
        false => row.key("system"),
    }
}

/// The same system, the same colour, in every plot; what is not known by name takes what is left in turn.
fn colour(name: &str, at: usize) -> &'static str {
    let known = EVERYBODY.iter().position(|system| system.name() == name);
    COLOURS[known.unwrap_or(at) % COLOURS.len()]
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Draws a plot for each wire, since rows of two do not compare; nothing where no row has what it shows.
pub fn draw(plot: &Plot, rows: &[Row]) -> String {
    let shown: Vec<&Row> = rows.iter().filter(|row| plot.y.iter().any(|y| row.values.contains_key(*y))).collect();
    let on = |wire: &String| shown.iter().filter(|row| row.key("wire") == *wire).copied().collect::<Vec<_>>();
    match plot.shape {
        Shape::Stacked => draw_rows(plot, plot.title, shown),
        Shape::Bars | Shape::Lines => {
            let wires = distinct(shown.iter().map(|row| row.key("wire")));
            wires.iter().map(|wire| draw_rows(plot, &format!("{}, {wire}", plot.title), on(wire))).collect()
        }
    }
}

fn draw_rows(plot: &Plot, title: &str, rows: Vec<&Row>) -> String {
    let total = |row: &&Row| plot.y.iter().filter_map(|y| row.values.get(*y)).sum::<f64>();
    let highest = |rows: &[&Row]| rows.iter().map(total).fold(0.0, f64::max);
    // The bound may be so far above all else that it leaves no room for it.
    let is_limit = |row: &&Row| row.key("system") == System::Limit.name();
    let (limits, others): (Vec<&Row>, Vec<&Row>) = rows.iter().copied().partition(is_limit);
    let dwarfs = !others.is_empty() && highest(&limits) > DWARFS * highest(&others);
    let (rows, beyond) = if dwarfs { (others, limits) } else { (rows, Vec::new()) };
    let highest = highest(&rows);
    if rows.is_empty() || highest <= 0.0 {
        return String::new();
    }
    let mut canvas = Canvas { out: String::new(), top: round_up(highest) };
    canvas.add(format_args!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"12\">"
    ));
    let title = escape(title);
    canvas.add(format_args!("<title>{title}</title><text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\">{title}</text>"));
    for step in 0..=4 {
        let value = canvas.top * f64::from(step) / 4.0;
        let y = canvas.y(value);
        canvas.add(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" class=\"axis\" stroke=\"#bbb\" stroke-width=\".5\"/>",
            WIDTH - RIGHT
        ));
        canvas.text(LEFT - 6.0, y + 4.0, "end", &short(value));
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let unit = escape(plot.unit);
    canvas.add(format_args!(
        "<text transform=\"translate(14 {middle:.0}) rotate(-90)\" text-anchor=\"middle\">{unit}</text>"
    ));
    if let Some(limit) = beyond.iter().max_by(|a, b| total(a).total_cmp(&total(b))) {
        canvas.beyond((LEFT, WIDTH - RIGHT), &series(limit), total(limit), plot.unit);
    }
    match plot.shape {
        Shape::Bars => bars(&mut canvas, plot, &rows),
        Shape::Lines => lines(&mut canvas, plot, &rows),
        Shape::Stacked => stacked(&mut canvas, plot, &rows),
    }
    canvas.out.push_str("</svg>");
    canvas.out
}

/// Groups by `x`, a bar for each system in each.
fn bars(canvas: &mut Canvas, plot: &Plot, rows: &[&Row]) {
    let groups = distinct(rows.iter().map(|row| row.key(plot.x)));
    let names = distinct(rows.iter().map(|row| series(row)));
    let room = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let width = (room * 0.84 / names.len() as f64).min(64.0);
    for (at, group) in groups.iter().enumerate() {
        let middle = LEFT + room * (at as f64 + 0.5);
        canvas.text(middle, HEIGHT - BOTTOM + 18.0, "middle", group);
        for row in rows.iter().filter(|row| row.key(plot.x) == *group) {
            let Some(place) = names.iter().position(|name| *name == series(row)) else { continue };
            let Some(value) = row.values.get(plot.y[0]) else { continue };
            let x = middle + (place as f64 - names.len() as f64 / 2.0) * width;
            let said = told(row, plot, &names[place], plot.y[0]);
            canvas.bar((x, width * 0.92), (0.0, *value), colour(&names[place], place), &said);
            if let Some(ends) = row.intervals.get(plot.y[0]) {
                canvas.whisker(x + width * 0.46, *ends);
            }
        }
    }
    canvas.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0, "middle", &plot.x.replace('_', " "));
    canvas.legend(&names);
}

/// A line for each system; the scale of `x` is logarithmic where it spans more than a power of ten.
fn lines(canvas: &mut Canvas, plot: &Plot, rows: &[&Row]) {
    let x = |row: &Row| row.number(plot.x).or_else(|| row.values.get(plot.x).copied());
    let numbers: Vec<f64> = rows.iter().filter_map(|row| x(row)).collect();
    let (low, high) = numbers.iter().fold((f64::MAX, f64::MIN), |(low, high), n| (low.min(*n), high.max(*n)));
    let scale = |n: f64| if low > 0.0 && high / low > 10.0 { n.log2() } else { n };
    let span = (scale(high) - scale(low)).max(1e-9);
    let place = |n: f64| LEFT + 12.0 + (scale(n) - scale(low)) / span * (WIDTH - LEFT - RIGHT - 24.0);
    let names = distinct(rows.iter().map(|row| series(row)));
    for (at, name) in names.iter().enumerate() {
        let colour = colour(name, at);
        let of = rows.iter().filter(|row| series(row) == *name);
        let mut points: Vec<(f64, &Row, f64)> =
            of.filter_map(|row| Some((x(row)?, *row, *row.values.get(plot.y[0])?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            points.iter().map(|(n, _, value)| format!("{:.1},{:.1}", place(*n), canvas.y(*value))).collect();
        canvas.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for (n, row, value) in points {
            let (x, y) = (place(n), canvas.y(value));
            let said = escape(&told(row, plot, name, plot.y[0]));
            canvas.add(format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\" class=\"value\"><title>{said}</title></circle>"
            ));
            if let Some(ends) = row.intervals.get(plot.y[0]).filter(|ends| ends.0 != ends.1) {
                canvas.whisker(x, *ends);
            }
        }
    }
    let mut ticks = numbers;
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let step = ticks.len().div_ceil(10).max(1);
    for tick in ticks.iter().step_by(step) {
        let text = if *tick >= 10_000.0 { short(*tick) } else { grouped(*tick) };
        canvas.text(place(*tick), HEIGHT - BOTTOM + 18.0, "middle", &text);
    }
    canvas.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0, "middle", &plot.x.replace('_', " "));
    canvas.legend(&names);
}

/// A bar a row, made of all values.
fn stacked(canvas: &mut Canvas, plot: &Plot, rows: &[&Row]) {
    let room = (WIDTH - LEFT - RIGHT) / rows.len() as f64;
    let width = (room * 0.7).min(90.0);
    for (at, row) in rows.iter().enumerate() {
        let middle = LEFT + room * (at as f64 + 0.5);
        canvas.text(middle, HEIGHT - BOTTOM + 18.0, "middle", &row.key("system"));
        canvas.text(middle, HEIGHT - BOTTOM + 34.0, "middle", &row.key("wire"));
        let mut from = 0.0;
        for (part, name) in plot.y.iter().enumerate() {
            let value = row.values.get(*name).copied().unwrap_or(0.0);
            let what = format!("{}, {}", row.key("system"), name.replace('_', " "));
            let said = told(row, plot, &what, name);
            canvas.bar((middle - width / 2.0, width), (from, from + value), colour(name, part), &said);
            from += value;
        }
    }
    let names: Vec<String> = plot.y.iter().map(|name| name.replace('_', " ")).collect();
    canvas.legend(&names);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (7.0, 7.5), (0.03, 0.03), (101_000.0, 150_000.0), (1e6, 1e6)] {
            assert!((round_up(value) / top - 1.0).abs() < 1e-9, "{value} {}", round_up(value));
        }
        assert_eq!([short(1_500_000.0), short(2500.0), short(0.25)], ["1.5 M", "2.5 k", "0.25"]);
    }
}
