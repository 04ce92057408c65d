//! Removes the origin of modules from Go's error texts: a proxy's name or address reveals something about the machine,
//! and build logs get pasted.

const BEFORE_ADDRESS: [&str; 5] = ["lookup", "tcp", "tcp4", "tcp6", "on"];

/// Replaces host and port of every URL, and words after "lookup", "dial tcp" and "on" that look like addresses.
pub fn redact(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(redact_line).collect();
    lines.join("\n")
}

fn redact_line(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let follows = words.last().is_some_and(|last| BEFORE_ADDRESS.contains(&last.as_str()));
        if word.contains("://") {
            words.push(redact_url(word));
        } else if follows && word.contains(['.', ':']) {
            words.push(if word.ends_with(':') { "<address>:" } else { "<address>" }.to_owned());
        } else {
            words.push(word.to_owned());
        }
    }
    words.join(" ")
}

/// Keeps the text before the scheme (a quote) and the path, because the path names the module.
fn redact_url(word: &str) -> String {
    let Some((before, after)) = word.split_once("://") else { return word.to_owned() };
    let scheme_at = before.rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    let path_at = after.find(['/', '"', ',']).unwrap_or(after.len());
    format!("{}<module proxy>{}", &before[..scheme_at], &after[path_at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_removed_and_the_module_stays() {
        let text = r#"go: k8s.io/api@v0.36.4: Get "https://user:pw@proxy.example:8443/k8s.io/api/@v/v0.36.4.mod": dial tcp 10.1.2.3:8443: connect: connection refused"#;
        let redacted = redact(text);
        assert_eq!(
            redacted,
            r#"go: k8s.io/api@v0.36.4: Get "<module proxy>/k8s.io/api/@v/v0.36.4.mod": dial tcp <address>: connect: connection refused"#
        );
    }

    #[test]
    fn name_servers_are_removed() {
        assert_eq!(
            redact("dial tcp: lookup proxy.example on 10.0.0.2:53: no such host"),
            "dial tcp: lookup <address> on <address>: no such host"
        );
    }

    #[test]
    fn compiler_errors_stay_as_they_are() {
        let text = "main.go:3:5: undefined: x\ndepends on y\n\tindented";
        assert_eq!(redact(text), text);
    }
}
