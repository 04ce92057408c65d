//! The places of a source file at which a small change makes another decision.

use std::collections::BTreeMap;

use quote::ToTokens as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, BinOp, Expr, Ident, Lit, LitBool, LitInt, Path, Token, UnOp, parse_quote};

/// A change of one expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The function in which it is.
    pub function: String,
    pub before: String,
    pub after: String,
}

/// Walks a file, whose sites are numbered by the order of the walk.
#[derive(Debug)]
struct Walk<'a> {
    sites: Vec<Site>,
    function: String,
    /// The mutants' numbers by the sites that get them.
    chosen: &'a BTreeMap<usize, usize>,
    /// The function that answers whether a mutant is active.
    switch: Path,
}

/// All sites of a file. Code for tests, constants and texts for people have none.
pub fn of_file(text: &str) -> syn::Result<Vec<Site>> {
    let (mut file, none) = (syn::parse_file(text)?, BTreeMap::new());
    Ok(walk(&mut file, &none, parse_quote!(switch)))
}

/// The file with mutants at some of its sites. Each asks `switch` whether it is active.
pub fn mutated(text: &str, chosen: &BTreeMap<usize, usize>, switch: &str) -> syn::Result<String> {
    let mut file = syn::parse_file(text)?;
    walk(&mut file, chosen, syn::parse_str(switch)?);
    Ok(prettyplease::unparse(&file))
}

fn walk(file: &mut syn::File, chosen: &BTreeMap<usize, usize>, switch: Path) -> Vec<Site> {
    let mut walk = Walk { sites: Vec::new(), function: String::new(), chosen, switch };
    walk.visit_file_mut(file);
    walk.sites
}

impl Walk<'_> {
    fn walk_body(&mut self, name: &Ident, body: &mut syn::Block) {
        let outer = std::mem::replace(&mut self.function, name.to_string());
        self.visit_block_mut(body);
        self.function = outer;
    }
}

impl VisitMut for Walk<'_> {
    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit_mut::visit_item_mod_mut(self, item);
        }
    }

    fn visit_item_fn_mut(&mut self, item: &mut syn::ItemFn) {
        if item.sig.constness.is_none() && !is_for_tests(&item.attrs) {
            self.walk_body(&item.sig.ident, &mut item.block);
        }
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut syn::ImplItemFn) {
        if item.sig.constness.is_none() && !is_for_tests(&item.attrs) {
            self.walk_body(&item.sig.ident, &mut item.block);
        }
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        // How a value is printed is no decision.
        let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if !is_for_tests(&item.attrs) && name.is_none_or(|name| name.ident != "Display") {
            visit_mut::visit_item_impl_mut(self, item);
        }
    }

    // The compiler evaluates constants, so they cannot ask for the active mutant.
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}

    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        // The site is that of the expression before its parts change.
        let changed = changed(expression);
        let number = changed.as_ref().and_then(|changed| {
            self.sites.push(Site {
                function: self.function.clone(),
                before: shown(expression),
                after: shown(changed),
            });
            self.chosen.get(&(self.sites.len() - 1))
        });
        visit_mut::visit_expr_mut(self, expression);
        if let (Some(number), Some(changed)) = (number, changed) {
            let switch = &self.switch;
            *expression = parse_quote!((if #switch(#number) { #changed } else { #expression }));
        }
    }
}

fn shown(expression: &Expr) -> String {
    expression.to_token_stream().to_string()
}

/// The expression with one change, if there is one that may compile.
fn changed(expression: &Expr) -> Option<Expr> {
    let mut changed = expression.clone();
    match &mut changed {
        Expr::Binary(binary) if !has_let(&binary.left) && !has_let(&binary.right) => {
            binary.op = other_operator(&binary.op)?;
        }
        Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => return Some(*unary.expr.clone()),
        Expr::MethodCall(call) => {
            call.method = Ident::new(other_method(&call.method.to_string())?, call.method.span());
        }
        Expr::Lit(literal) => match &literal.lit {
            Lit::Bool(bool) => literal.lit = Lit::Bool(LitBool::new(!bool.value, bool.span)),
            Lit::Int(int) => {
                let more = format!("{}{}", int.base10_parse::<u64>().ok()? + 1, int.suffix());
                literal.lit = Lit::Int(LitInt::new(&more, int.span()));
            }
            _ => return None,
        },
        _ => return None,
    }
    Some(changed)
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("test") || list.is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

/// Whether an operand is a part of a chain with `let`, which cannot be put into an expression of its own.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn other_operator(operator: &BinOp) -> Option<BinOp> {
    Some(match operator {
        BinOp::Eq(_) => BinOp::Ne(<Token![!=]>::default()),
        BinOp::Ne(_) => BinOp::Eq(<Token![==]>::default()),
        BinOp::Lt(_) => BinOp::Le(<Token![<=]>::default()),
        BinOp::Le(_) => BinOp::Lt(<Token![<]>::default()),
        BinOp::Gt(_) => BinOp::Ge(<Token![>=]>::default()),
        BinOp::Ge(_) => BinOp::Gt(<Token![>]>::default()),
        BinOp::And(_) => BinOp::Or(<Token![||]>::default()),
        BinOp::Or(_) => BinOp::And(<Token![&&]>::default()),
        BinOp::Add(_) => BinOp::Sub(<Token![-]>::default()),
        BinOp::Sub(_) | BinOp::Mul(_) => BinOp::Add(<Token![+]>::default()),
        _ => return None,
    })
}

fn other_method(method: &str) -> Option<&'static str> {
    Some(match method {
        "all" => "any",
        "any" => "all",
        "first" => "last",
        "is_none" => "is_some",
        "is_none_or" => "is_some_and",
        "is_some" => "is_none",
        "is_some_and" => "is_none_or",
        "last" => "first",
        "max" => "min",
        "max_by_key" => "min_by_key",
        "min" => "max",
        "min_by_key" => "max_by_key",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each mutated expression of a function with this body.
    fn mutants(body: &str) -> Vec<String> {
        let sites = of_file(&format!("fn f() {{ {body} }}")).unwrap();
        sites.into_iter().map(|site| site.after).collect()
    }

    #[test]
    fn operators_literals_and_methods_are_changed() {
        assert_eq!(mutants("a == b"), ["a != b"]);
        assert_eq!(mutants("!a && b"), ["! a || b", "a"]);
        assert_eq!(mutants("x.iter().any(g)"), ["x . iter () . all (g)"]);
        assert_eq!(mutants("g(true, 7_u8)"), ["false", "8u8"]);
        assert_eq!(mutants("a - b * c"), ["a + b * c", "b + c"]);
    }

    #[test]
    fn chains_with_let_constants_and_patterns_stay() {
        assert_eq!(mutants("if let Some(1) = a && b { c() }"), [""; 0]);
        assert_eq!(mutants("const N: usize = 3; let a = [b; 4];"), [""; 0]);
        assert_eq!(of_file("#[cfg(test)] mod t { fn f() -> bool { a == b } }").unwrap(), []);
        assert_eq!(of_file("const fn f() -> bool { a == b }").unwrap(), []);
    }

    #[test]
    fn a_mutant_is_active_by_its_number_only() {
        let text = mutated("fn f() -> bool { !a && b }", &[(1, 7)].into(), "crate::is_mutant").unwrap();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat, "fn f() -> bool { (if crate::is_mutant(7usize) { a } else { !a }) && b }");
    }
}
