//! The page that a person sees instead of the edge's JSON. It loads nothing: whoever sees it may reach nothing but the edge.

use std::fmt::Write;

const TEMPLATE: &str = include_str!("page.html");

/// What a page says.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    pub(crate) status: u16,
    pub(crate) title: &'a str,
    /// What is the matter.
    pub(crate) text: &'a str,
    /// What to do about it.
    pub(crate) hint: &'a str,
    /// Names and values, such as the sandbox's id.
    pub(crate) facts: &'a [(&'a str, String)],
}

impl Page<'_> {
    pub(crate) fn render(&self) -> String {
        let mut facts = String::new();
        for (name, value) in self.facts {
            // Writing to a string does not fail.
            write!(facts, "<dt>{}</dt><dd><code>{}</code></dd>", escape(name), escape(value))
                .unwrap_or_default();
        }
        let status = self.status.to_string();
        let (title, text, hint) = (escape(self.title), escape(self.text), escape(self.hint));
        let values =
            [("status", &status), ("title", &title), ("text", &text), ("hint", &hint), ("facts", &facts)];
        // In one pass, so that a value that looks like a place-holder stays what it is.
        let mut page = String::with_capacity(TEMPLATE.len() + 1024);
        let mut rest = TEMPLATE;
        while let Some((before, after)) = rest.split_once("{{") {
            page.push_str(before);
            let Some((name, after)) = after.split_once("}}") else { break };
            if let Some((_, value)) = values.iter().find(|(n, _)| *n == name) {
                page.push_str(value);
            }
            rest = after;
        }
        page.push_str(rest);
        page
    }
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_on_the_page_and_nothing_breaks_out_of_it() {
        let page = Page {
            status: 502,
            title: "A {{facts}} title",
            text: "<script>alert(1)</script>",
            hint: "\"quoted\" & 'so'",
            facts: &[("Path", "<b>{{status}}</b>".to_owned())],
        }
        .render();
        assert!(
            page.contains("A {{facts}} title") && page.contains("&lt;b&gt;{{status}}&lt;/b&gt;"),
            "{page}"
        );
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        assert!(page.contains("&quot;quoted&quot; &amp; &#39;so&#39;"));
        assert!(page.ends_with("</html>\n"));
        for outside in ["http://", "https://", "src=", "href=", "url("] {
            assert!(!page.contains(outside), "a page loads nothing: {outside}");
        }
    }
}
