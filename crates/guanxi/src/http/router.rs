//! Every call, in one flat table, and the names that metrics know them by.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    App, audit, backup, check, counters, dead_letters, docs, document, edges, export, groups,
    health, hot, hydrate, import, jobs, kinds, lists, moving, nodes, problem, standby, tallies,
    watch,
};

pub fn router() -> (Router<Arc<App>>, OpenApi) {
    let (router, document) = OpenApiRouter::with_openapi(document::base())
        .routes(routes!(edges::put, edges::delete, edges::get))
        .routes(routes!(edges::approve))
        .routes(routes!(edges::decline))
        .routes(routes!(edges::batch))
        .routes(routes!(lists::outgoing))
        .routes(routes!(lists::incoming))
        .routes(routes!(lists::mutual))
        .routes(routes!(lists::common))
        .routes(routes!(lists::known))
        .routes(routes!(lists::scan_outgoing))
        .routes(routes!(lists::scan_incoming))
        .routes(routes!(check::check))
        .routes(routes!(tallies::tallies))
        .routes(routes!(hydrate::hydrate))
        .routes(routes!(counters::count))
        .routes(routes!(counters::batch))
        .routes(routes!(groups::list, groups::create))
        .routes(routes!(groups::rename, groups::delete))
        .routes(routes!(groups::add_member, groups::drop_member))
        .routes(routes!(nodes::get, nodes::put, nodes::erase))
        .routes(routes!(watch::watch))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::list))
        .routes(routes!(kinds::list, kinds::create))
        .routes(routes!(kinds::get, kinds::change))
        .routes(routes!(standby::ship))
        .routes(routes!(standby::get))
        .routes(routes!(standby::promote))
        .routes(routes!(moving::get, moving::begin, moving::confirm, moving::let_go))
        .routes(routes!(moving::pause))
        .routes(routes!(backup::backup))
        .routes(routes!(import::import))
        .routes(routes!(import::get))
        .routes(routes!(export::export))
        .routes(routes!(audit::run, audit::get))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::get, dead_letters::forget))
        .routes(routes!(dead_letters::retry))
        .routes(routes!(hot::list))
        .routes(routes!(hot::filters))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::openapi))
        .routes(routes!(docs::docs))
        .split_for_parts();
    let router = router
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed);
    (router, document::finished(document))
}

/// Operation ids by path and method, as the document has them.
#[derive(Debug)]
pub struct CallNames {
    by_path: HashMap<String, Vec<(Method, &'static str)>>,
}

impl CallNames {
    pub fn of(document: &OpenApi) -> CallNames {
        let paths = document.paths.paths.iter();
        let by_path = paths.map(|(path, item)| (path.clone(), operations(item)));
        CallNames { by_path: by_path.collect() }
    }

    pub fn get(&self, method: &Method, path: &str) -> Option<&'static str> {
        let calls = self.by_path.get(path)?;
        let found = calls.iter().find(|(known, _)| known == method);
        found.map(|(_, name)| *name)
    }
}

fn operations(item: &PathItem) -> Vec<(Method, &'static str)> {
    let all: [(Method, &Option<Operation>); 5] = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
        (Method::PATCH, &item.patch),
    ];
    let named = all.into_iter().filter_map(|(method, operation)| {
        let name = operation.as_ref()?.operation_id.clone()?;
        // There is one document per process, so its names may as well live as long.
        Some((method, &*name.leak()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_name_of_its_own() {
        let (_, document) = router();
        let names = CallNames::of(&document);
        let mut all: Vec<&str> = names.by_path.values().flatten().map(|(_, n)| *n).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let path = "/v1/edges/{kind}/{source}/{target}";
        assert_eq!(names.get(&Method::PUT, path), Some("put_edge"));
        assert_eq!(names.get(&Method::POST, path), None);
    }
}
