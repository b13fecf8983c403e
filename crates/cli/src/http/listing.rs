//! A directory as a page of links, for `--list`.

use super::path;
use std::fmt::Write;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// Sorted: directories come first.
    pub is_file: bool,
    /// As the file system has it; need not be text.
    pub name: Vec<u8>,
}

/// The page for the directory at `path`, relative to the root. `whole` says that no entry was left out.
pub fn page(path: &[u8], entries: &[Entry], whole: bool) -> String {
    let title = format!("/{}", String::from_utf8_lossy(path));
    let title = escape(title.trim_end_matches('/'));
    let mut out = format!("<!doctype html><meta charset=\"utf-8\"><title>{title}/</title><h1>{title}/</h1><ul>\n");
    // Writing to a String cannot fail.
    if !path.is_empty() {
        out.push_str("<li><a href=\"../\">../</a>\n");
    }
    for entry in entries {
        let slash = if entry.is_file { "" } else { "/" };
        let mut link = String::new();
        path::encode(&entry.name, &mut link);
        let name = escape(&String::from_utf8_lossy(&entry.name));
        // "./": a name with a colon is no scheme.
        let _ = writeln!(out, "<li><a href=\"./{link}{slash}\">{name}{slash}</a>");
    }
    out.push_str("</ul>\n");
    if !whole {
        out.push_str("<p>There are more, which are not shown.\n");
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_links_are_encoded() {
        let entry = |is_file, name: &str| Entry { is_file, name: name.into() };
        let page = page(b"a<b", &[entry(false, "sub"), entry(true, "x:\"y\" & z.txt")], false);
        assert!(page.contains("<title>/a&lt;b/</title>"), "{page}");
        assert!(page.contains("<a href=\"../\">"), "{page}");
        assert!(page.contains("<a href=\"./sub/\">sub/</a>"), "{page}");
        assert!(page.contains("<a href=\"./x%3A%22y%22%20%26%20z.txt\">x:&quot;y&quot; &amp; z.txt</a>"), "{page}");
        assert!(page.contains("not shown"), "{page}");
        assert!(super::page(b"", &[], true).contains("<title>/</title>"));
    }
}
