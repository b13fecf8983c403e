//! A report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use super::plot;
use super::report::Report;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.5rem}table{border-collapse:collapse;font-size:.85rem;margin:1rem 0;\
font-variant-numeric:tabular-nums}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}th:nth-child(-n+2),\
td:nth-child(-n+2){text-align:left}svg{max-width:100%;height:auto;margin:1rem 0}ul{font-size:.85rem;color:#444}.about{color:#444}\
.wide{overflow-x:auto}code{font-size:.9em;background:#f2f2f2;padding:.1rem .3rem}svg .value:hover{opacity:.75}\
@media screen and (prefers-color-scheme:dark){body{background:#16181c;color:#e6e6e6}th,td{border-color:#333}code{background:#26292f}\
ul,.about{color:#aaa}svg text{fill:#ccc}svg .axis{stroke:#777}}\
@media print{body{max-width:none;margin:0;padding:0;font-size:10pt}.wide{overflow:visible}table{font-size:8pt}\
h2{break-after:avoid;margin-top:1.5rem}svg,tr,li{break-inside:avoid}svg{max-width:16cm}ul,.about{color:#000}}";

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

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn write(out: &mut String, reports: &[Report]) -> std::fmt::Result {
    let title = match reports {
        [report] => format!("corelane bench: {}", report.about),
        _ => "corelane bench".to_owned(),
    };
    let title = escape(&title);
    write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    )?;
    write!(out, "<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>")?;
    if let Some(report) = reports.first() {
        let (machine, method) = (&report.machine, &report.method);
        write!(out, "<p><code>{}</code></p>", escape(&method.command))?;
        let about = format!("{}. corelane {}, {}", machine.describe(), machine.version, method.date);
        write!(out, "<p class=\"about\">{}</p>", escape(&about))?;
        if method.quick {
            write!(out, "<p class=\"about\"><b>A quick look: too short to compare by.</b></p>")?;
        }
    }
    for report in reports {
        write!(out, "<h2 id=\"{}\">{}</h2>", report.name, escape(&capital(report.about)))?;
        write!(out, "<p class=\"about\">corelane bench {}, after {}</p>", report.name, escape(report.after))?;
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
