VACANCIES = ["baker", "cashier"]
