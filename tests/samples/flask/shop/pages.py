from flask import Blueprint, jsonify, request

from . import books, tasks

pages = Blueprint("pages", __name__)


@pages.post("/sales")
def sell():
    books.sell(request.json["article"], request.json["euros"])
    tasks.thank.delay(request.json["article"])
    return jsonify(sold=request.json["article"]), 201
