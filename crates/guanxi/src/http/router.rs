//! Which handler answers which method of which path; `calls::table` knows the calls themselves.

use std::sync::Arc;

use axum::Router;
use utoipa::openapi::OpenApi;
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
        .routes(routes!(standby::acknowledge))
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
