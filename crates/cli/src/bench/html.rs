//! A report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use super::plot;
use super::report::Report;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem}table{border-collapse:collapse;font-size:.85rem;margin:1rem 0;\
font-variant-numeric:tabular-nums}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}th:nth-child(-n+2),\
td:nth-child(-n+2){text-align:left}svg{max-width:100%;height:auto;margin:1rem 0}ul{font-size:.85rem;color:#444}.about{color:#444}\
.wide{overflow-x:auto}@media(prefers-color-scheme:dark){body{background:#16181c;color:#e6e6e6}th,td{border-color:#333}\
ul,.about{color:#aaa}svg text{fill:#ccc}svg .axis{stroke:#777}}";

/// Text that may hold anything.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page with every report.
pub fn page(reports: &[Report]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut out, reports);
    out
}

fn write(out: &mut String, reports: &[Report]) -> std::fmt::Result {
    let title = "corelane bench";
    write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    )?;
    write!(out, "<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>")?;
    if let Some(report) = reports.first() {
        let machine = serde_json::to_value(&report.machine).unwrap_or_default();
        let words = machine.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let words: Vec<String> =
            words.map(|(name, value)| format!("{name}: {}", value.to_string().trim_matches('"'))).collect();
        write!(out, "<p class=\"about\">{}</p>", escape(&words.join(" · ")))?;
    }
    for report in reports {
        write!(out, "<h2 id=\"{0}\">{0}</h2>", report.name)?;
        write!(out, "<p class=\"about\">{} ({})</p>", escape(report.about), escape(report.after))?;
        for plot in &report.plots {
            out.push_str(&plot::draw(plot, &report.rows));
        }
        out.push_str("<div class=\"wide\"><table>");
        for (at, row) in report.cells().iter().enumerate() {
            let tag = if at == 0 { "th" } else { "td" };
            out.push_str("<tr>");
            for cell in row {
                write!(out, "<{tag}>{}</{tag}>", escape(cell))?;
            }
            out.push_str("</tr>");
        }
        out.push_str("</table></div><ul>");
        for line in report.footnotes() {
            write!(out, "<li>{}</li>", escape(&line))?;
        }
        for system in &report.systems {
            write!(out, "<li><b>{}</b>: {}</li>", system.name(), escape(system.describe()))?;
        }
        out.push_str("</ul>");
    }
    out.push_str("</html>\n");
    Ok(())
}
