// Package jsonapi is the HTTP face that both server kits share: it finds the
// route of a request, reads its JSON body, and writes the answer or the refusal.
//
// Routes are exact paths. Each also answers behind "/ng-rollout/<capture key>"
// and "/ng-rollout/<capture key>/training-token-capture", the prefixes by which
// captured calls are told apart (section 1 of the protocol); http.ServeMux would
// redirect paths that it finds untidy, which no driver follows for a POST.
package jsonapi
